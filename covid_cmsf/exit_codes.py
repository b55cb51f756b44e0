"""Exit codes of all commands, and the outermost error handler: one readable line per error.

A user's mistake (`USER_ERRORS`) ends with code 2, any other exception with code 1.
"""

import io
import os
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from rich.markup import escape

from covid_cmsf.logs import console, printable, setup_logging

SUCCESS = 0
FAILED = 1
USAGE_ERROR = 2
SKIPPED_ITEMS = 3  # done, but some items were skipped; they are listed
INTERRUPTED = 75  # by a signal; the same command resumes (EX_TEMPFAIL: job systems requeue it)

TYPER_INTERRUPTED = 130  # typer's exit code after Ctrl-C
USER_ERRORS = (ValueError, FileNotFoundError, NotADirectoryError, IsADirectoryError, FileExistsError, PermissionError)


def run_app(app: Callable[..., object]) -> NoReturn:
    """Run a typer application and exit with one of the codes above.

    `--debug`, anywhere on the command line, prints the traceback of an error.
    """
    debug = "--debug" in sys.argv
    sys.argv = [argument for argument in sys.argv if argument != "--debug"]
    setup_logging(debug=debug)
    # Must be set before PyTorch is imported: OpenMP threads that spin while waiting slow down a busy machine 10x.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may hold undecodable bytes
    try:
        app()
    except SystemExit as end:
        if end.code != TYPER_INTERRUPTED:
            raise
        console.print("[yellow]interrupted[/]; run the same command to resume")
        sys.exit(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (the outermost boundary: it reports and exits non-zero)
        if debug:
            console.print_exception()
        is_user_error = isinstance(error, USER_ERRORS)
        message = str(error) if is_user_error and str(error) else f"{type(error).__name__}: {error}"
        hint = "" if debug or is_user_error else " (--debug shows the traceback)"
        console.print(f"[red]error:[/] {escape(printable(message))}{hint}", soft_wrap=True, highlight=False)
        sys.exit(USAGE_ERROR if is_user_error else FAILED)
    sys.exit(SUCCESS)


def hide_flag_types(command: Any, parent: Any = None) -> None:
    """Print no `<bool>` beside flags: they take no value."""
    context = command.context_class(command, parent=parent, **command.context_settings)
    # `--help` is not in `params`: the command creates it on the first call, and keeps it.
    for param in (*command.params, command.get_help_option(context)):
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    for subcommand in getattr(command, "commands", {}).values():
        hide_flag_types(subcommand, context)
