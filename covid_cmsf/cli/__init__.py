"""The command `covid-cmsf`: one file per group of commands, which parses options, calls the packages and prints."""

import signal
import sys
from types import FrameType

INTERRUPTED = 75  # `exit_codes.INTERRUPTED`, which is imported too late for a signal during the imports

__all__ = ["main"]


def main(*command: str) -> None:
    """Run the console command; `command` is put in front of the arguments (launchers in tools/).

    Importing everything takes seconds. From the first moment on, a signal of a job scheduler ends with code 75;
    commands that have something to save set handlers of their own.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, _exit_interrupted)
    from covid_cmsf.cli.app import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    run(*command)


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    sys.stderr.write("interrupted; run the same command to resume\n")
    sys.exit(INTERRUPTED)
