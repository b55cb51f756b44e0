"""How commands that compute something end: print the result, list what was skipped, stop so that they can resume."""

import json
import signal
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from covid_cmsf import exit_codes
from covid_cmsf.logs import console

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

MAX_PRINTED = 10  # of the skipped videos


def print_result(kind: str, result: object, table: "RenderableType", out: Path | None, as_json: bool) -> None:
    """The result on stdout, and in a file where one is named."""
    from rich.console import Console

    from covid_cmsf.evaluation.results import result_to_dict, write_result

    if out is not None:
        if not out.parent.is_dir():
            raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")
        write_result(out, kind, result)
    if as_json:
        typer.echo(json.dumps(result_to_dict(kind, result)))
    else:
        Console().print(table)


def report_skipped(skipped: "Sequence[tuple[str, str, str]]") -> None:
    """Lists videos that have no result and ends with exit code 3; does nothing when there are none."""
    if not skipped:
        return
    for video_id, stage, reason in skipped[:MAX_PRINTED]:
        console.print(f"skipped: {video_id} ({stage}): {reason}", style="yellow", highlight=False, markup=False)
    if len(skipped) > MAX_PRINTED:
        console.print(f"... and {len(skipped) - MAX_PRINTED} more", style="yellow")
    console.print(f"{len(skipped)} videos have no result; numbers are of the others", style="yellow")
    raise typer.Exit(exit_codes.SKIPPED_ITEMS)


@contextmanager
def interrupt_on_sigterm() -> "Iterator[None]":
    """Within the block a job scheduler's SIGTERM is a Ctrl-C: exit code 75, and the same command continues."""

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
