"""What a command tells the shell: every command ends with one of these."""

import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.markup import escape

from covid_cmsf.logs import console, setup_logging

SUCCESS = 0
FAILED = 1
USAGE_ERROR = 2
SKIPPED_ITEMS = 3  # done, but some items were set aside and are listed
INTERRUPTED = 75  # stopped from outside; the same command continues (EX_TEMPFAIL: job systems requeue it)


# Errors as one readable line: what the user did wrong ends with exit code 2, everything else with 1.

TYPER_INTERRUPTED = 130  # what typer makes of Ctrl-C
USER_ERRORS = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


def run_app(app: Callable[..., object]) -> NoReturn:
    """Runs a typer application. `--debug` may stand anywhere on the line: then errors show their traceback."""
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    setup_logging(debug=debug)
    # Before PyTorch is imported: threads that wait by spinning make a busy machine ten times slower.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names need not be valid text
    try:
        app()
    except SystemExit as end:
        if end.code != TYPER_INTERRUPTED:
            raise
        console.print("[yellow]interrupted[/]; the same command continues where it can")
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (the outermost boundary: it reports and exits non-zero)
        if debug:
            console.print_exception()
        is_user_error = isinstance(error, USER_ERRORS)
        message = str(error) if is_user_error and str(error) else f"{type(error).__name__}: {error}"
        hint = "" if debug or is_user_error else " (--debug shows the traceback)"
        console.print(f"[red]error:[/] {escape(message)}{hint}", soft_wrap=True, highlight=False)
        sys.exit(USAGE_ERROR if is_user_error else FAILED)
    sys.exit(SUCCESS)
