"""Benchmarks: both sides measured in one run, times and their ratio printed.

    python tools/benchmark.py flow VIDEO          TV-L1: ours against OpenCV's
    python tools/benchmark.py flow VIDEO --json FILE   also keeps the results with date, commit and CPU

Every module of `tools/benchmarks` that defines `command` is a subcommand with the module's name.
"""

import importlib
import pkgutil
import sys
from pathlib import Path

import typer

app = typer.Typer(no_args_is_help=True, help=__doc__, pretty_exceptions_enable=False)


@app.callback()
def _group() -> None:
    """Keeps the subcommand's name on the command line also while there is only one."""


TOOLS = Path(__file__).resolve().parent
sys.path.insert(0, str(TOOLS.parent))  # the checkout: `tools` is not installed
for module in pkgutil.iter_modules([str(TOOLS / "benchmarks")]):
    command = getattr(importlib.import_module(f"tools.benchmarks.{module.name}"), "command", None)
    if command is not None:
        app.command(module.name)(command)

if __name__ == "__main__":
    app()
