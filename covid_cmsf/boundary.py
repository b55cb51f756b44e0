"""Errors as one readable line: what the user did wrong ends with exit code 2, everything else with 1."""

import io
import os
import sys
from collections.abc import Callable
from typing import NoReturn

from rich.markup import escape

from covid_cmsf import exit_codes
from covid_cmsf.logs import console, setup_logging

TYPER_INTERRUPTED = 130  # what typer makes of Ctrl-C
USER_ERRORS = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


def run(app: Callable[..., object]) -> NoReturn:
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
        sys.exit(exit_codes.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (the outermost boundary: it reports and exits non-zero)
        if debug:
            console.print_exception()
        users_fault = isinstance(error, USER_ERRORS)
        words = str(error) if users_fault and str(error) else f"{type(error).__name__}: {error}"
        hint = "" if debug or users_fault else " (--debug shows the traceback)"
        console.print(f"[red]error:[/] {escape(words)}{hint}", soft_wrap=True, highlight=False)
        sys.exit(exit_codes.WRONG_USE if users_fault else exit_codes.FAILED)
    sys.exit(exit_codes.DONE)
