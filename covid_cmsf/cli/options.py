"""What several commands share: options and arguments as types (`seed: Seed = 0`), and how they print and end."""

import json
import signal
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from covid_cmsf import exit_codes
from covid_cmsf.logs import console, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Any setting: optimizer.lr=5e-4, 'views={}' (replace a section), labels=null (unset), "
        "guides.0.layer=encoder. See `covid-cmsf config schema`.",
        show_default=False,
    ),
]
Config = Annotated[
    str,
    typer.Argument(metavar="CONFIG", help="A name from `covid-cmsf config list`, or a YAML file.", show_default=False),
]
RunFolder = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder to write; default: runs/CONFIG.", show_default=False)
]
NewFile = Annotated[Path, typer.Option("--out", "-o", help="File to write.", show_default=False)]
NewFolder = Annotated[Path, typer.Option("--out", "-o", help="Folder to write.", show_default=False)]
ResultFile = Annotated[
    Path | None, typer.Option("--out", "-o", help="JSON file for the result; default: none.", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists and differs.")]

Clips = Annotated[
    Path, typer.Argument(help="A clip store, a CoCLR LMDB, a folder of JPEG frames, or images.", show_default=False)
]
OptionalClips = Annotated[
    Path | None,
    typer.Argument(help="A clip store, a CoCLR LMDB, a folder of JPEG frames, or images.", show_default=False),
]
Checkpoint = Annotated[
    Path,
    typer.Argument(help="A run folder or weights file: ours, CoCLR's, torchvision's, MSF's, ...", show_default=False),
]
Branch = Annotated[
    str | None,
    typer.Option(
        "--branch",
        help="Network of the file: online (default), target, guide, or its name in the file.",
        show_default=False,
    ),
]
Modality = Annotated[
    str | None,
    typer.Option(
        "--modality",
        help="rgb, flow, residual_flow, motion, residual_motion, rgbdiff, frame (center frame, for 2D networks), audio",
        show_default=False,
    ),
]
Length = Annotated[
    int | None, typer.Option("--length", min=1, help="Frames per window; default: as trained.", show_default=False)
]
Size = Annotated[int | None, typer.Option("--size", min=8, help="Pixels; default: as trained.", show_default=False)]
Stride = Annotated[
    int | None,
    typer.Option("--stride", min=1, help="Distance of sampled frames; default: as trained.", show_default=False),
]
Windows = Annotated[
    int | None,
    typer.Option("--windows", min=1, help="Windows per video, evenly spaced; default: 4.", show_default=False),
]
Protocol = Annotated[str, typer.Option("--protocol", help="clean, or coclr: the evaluation of Han et al.")]
Split = Annotated[
    str | None,
    typer.Option("--split", help="A split of the clips, or a CSV file video_id,split; default: 1.", show_default=False),
]
Workers = Annotated[int, typer.Option("--workers", min=0, help="Processes that read clips; 0: only this one.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1, ...; auto: a GPU if there is one.")]
Processes = Annotated[
    int | None,
    typer.Option(
        "--processes",
        min=1,
        help="Processes that share the videos, each with --workers; default: one per GPU.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Random seed.")]

Columns = Annotated[int, typer.Option("--columns", min=1, max=32, help="Frames per row.")]

Features = Annotated[Path, typer.Argument(help="A file written by `covid-cmsf extract`.", show_default=False)]
Gallery = Annotated[str, typer.Option("--gallery", help="Subset to search in or learn from: train, or fit for tuning.")]
Query = Annotated[str, typer.Option("--query", help="Subset to evaluate: test, or val for tuning.")]
Center = Annotated[
    str | None,
    typer.Option(
        "--center",
        help="Mean to subtract: train, own or none; default: train (clean), own (coclr).",
        show_default=False,
    ),
]
AllowSharedSources = Annotated[
    bool,
    typer.Option("--allow-shared-sources", help="Accept footage that is in both subsets; the result says so."),
]
AllowStale = Annotated[
    bool, typer.Option("--allow-stale", help="Accept features whose checkpoint or videos have changed since.")
]
ValFraction = Annotated[float, typer.Option("--val-fraction", help="Fraction of the training sources that form `val`.")]

MAX_PRINTED = 10  # of the skipped videos


def print_result(kind: str, result: object, table: "RenderableType", out: Path | None, as_json: bool) -> None:
    """Print a result to stdout, and write it to a file if one is named."""
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
    """List the videos that have no result and exit with code 3; do nothing if there are none, or all are accepted.

    A video that two files lack counts once.
    """
    from covid_cmsf.clips.acceptance import ACCEPTED

    listed = list({entry[0]: entry for entry in reversed(skipped)}.values())[::-1]
    skipped = [entry for entry in listed if not entry[2].startswith(ACCEPTED)]
    if len(listed) > len(skipped):
        console.print(f"{len(listed) - len(skipped)} accepted videos have no result (see failures.csv of the clips)")
    if not skipped:
        return
    for video_id, stage, reason in skipped[:MAX_PRINTED]:
        text = printable(f"skipped: {video_id} ({stage}): {reason}")
        console.print(text, style="yellow", highlight=False, markup=False)
    if len(skipped) > MAX_PRINTED:
        console.print(f"... and {len(skipped) - MAX_PRINTED} more", style="yellow")
    console.print(f"{len(skipped)} videos have no result; numbers are of the others", style="yellow")
    raise typer.Exit(exit_codes.SKIPPED_ITEMS)


@contextmanager
def interrupt_on_sigterm() -> "Iterator[None]":
    """Treat a job scheduler's SIGTERM within the block as Ctrl-C: exit code 75, and the same command resumes."""

    def interrupt(signal_number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)
