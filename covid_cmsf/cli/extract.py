"""`covid-cmsf extract`."""

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

    from covid_cmsf.clips import Clips
    from covid_cmsf.evaluation.subjects import Subject

SHOWN = 10  # of the videos that were set aside

PART = typer.Option(None, "--part", help="Which network of the file: online (default), target or guide.")
MODALITY = typer.Option(None, "--modality", help="rgb, flow, rgbdiff or frame (center frame, for 2D networks).")
LENGTH = typer.Option(None, "--length", min=1, help="Frames of a window, if not as trained.")
SIZE = typer.Option(None, "--size", min=8, help="Pixels, if not as trained.")
STRIDE = typer.Option(None, "--stride", min=1, help="Frames from one to the next, if not as trained.")
WINDOWS = typer.Option(None, "--windows", min=1, help="Windows of a video, evenly spread; 4 when left out.")
PROTOCOL = typer.Option("clean", "--protocol", help="clean, or coclr: what the code of Han et al. does.")
SPLIT = typer.Option(None, "--split", help="Name of a split of the clips, or a CSV file: video_id,split.")
WORKERS = typer.Option(2, "--workers", min=0, help="Processes that read clips; 0: none but this one.")
DEVICE = typer.Option("auto", "--device", help="cpu, cuda, cuda:1, ...; auto: a GPU where there is one.")
SEED = typer.Option(0, "--seed", min=0, help="Of whatever is random.")
FORCE = typer.Option(False, "--force", help="Replace the output if it is there and something else.")


def extract(
    checkpoint: Path = typer.Argument(
        ..., help="Weights: our checkpoint or exchange file, CoCLR's, torchvision's, MSF's ...", show_default=False
    ),
    clips: Path | None = typer.Argument(None, help="A clip store, a CoCLR LMDB, or a folder of JPEG frames."),
    out: Path = typer.Option(..., "--out", "-o", help="The features file to write.", show_default=False),
    part: str | None = PART,
    random: str | None = typer.Option(
        None, "--random", help="An encoder of the zoo with random weights; then CLIPS is the only argument."
    ),
    modality: str | None = MODALITY,
    length: int | None = LENGTH,
    size: int | None = SIZE,
    stride: int | None = STRIDE,
    windows: int | None = WINDOWS,
    protocol: str = PROTOCOL,
    split: str | None = SPLIT,
    batch_size: int | None = typer.Option(
        None, "--batch-size", min=1, help="Windows that pass the network together: 16, of images 128, when left out."
    ),
    workers: int = WORKERS,
    device: str = DEVICE,
    precision: str = typer.Option("fp32", "--precision", help="fp32, bf16 or fp16."),
    seed: int = SEED,
    force: bool = FORCE,
) -> None:
    """Features of every video of a split, in one file that knows which model they came from.

    The same command continues when it was stopped, and does nothing when it is done. Videos that cannot be read are
    listed, have no row, and make the exit code 3.
    """
    from covid_cmsf.devices import choose_device
    from covid_cmsf.evaluation.extraction import extract_features
    from covid_cmsf.evaluation.showing import showing_for
    from covid_cmsf.evaluation.split import split_videos
    from covid_cmsf.evaluation.tables import features_words
    from covid_cmsf.logs import progress_bar

    subject, opened = subject_and_clips(checkpoint, clips, part=part, random=random, modality=modality, seed=seed)
    showing = showing_for(
        subject.card,
        protocol=protocol,
        modality=modality,
        length=length,
        size=size,
        stride=stride,
        num_windows=windows,
        seed=seed,
    )
    with stopped_by_sigterm(), progress_bar("videos", len(split_videos(opened, split).records)) as advance:
        features = extract_features(
            subject,
            opened,
            out,
            showing=showing,
            split=split,
            batch_size=batch_size,
            num_workers=workers,
            device=choose_device(device),
            precision=precision,
            replace=force,
            on_video=advance,
        )
    typer.echo(f"{out}: {features_words(features)}")
    report_set_aside(features.set_aside)


def subject_and_clips(
    checkpoint: Path, clips: Path | None, *, part: str | None, random: str | None, modality: str | None, seed: int
) -> "tuple[Subject, Clips]":
    """The network of the first argument and the clips of the second; with `random` the first names the clips."""
    from covid_cmsf.clips import open_clips
    from covid_cmsf.evaluation.subjects import random_subject, subject_from

    if random is not None:
        if clips is not None or part is not None:
            raise ValueError("random weights come from no checkpoint and have no parts: name the clips only")
        return random_subject(random, modality=modality or "rgb", seed=seed), open_clips(checkpoint)
    if clips is None:
        raise ValueError("two arguments are needed: a checkpoint and clips")
    return subject_from(checkpoint, part=part), open_clips(clips)


@contextmanager
def stopped_by_sigterm() -> "Iterator[None]":
    """Within the block a job scheduler's SIGTERM is a Ctrl-C: exit code 75, and the same command continues."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def report_set_aside(set_aside: "Sequence[tuple[str, str, str]]") -> None:
    """Lists videos that have no result and ends with exit code 3; does nothing when there are none."""
    if not set_aside:
        return
    for video_id, part, reason in set_aside[:SHOWN]:
        console.print(f"set aside: {video_id} ({part}): {reason}", style="yellow", highlight=False, markup=False)
    if len(set_aside) > SHOWN:
        console.print(f"... and {len(set_aside) - SHOWN} more", style="yellow")
    console.print(f"{len(set_aside)} videos have no result; numbers are of the others", style="yellow")
    raise typer.Exit(exit_codes.SET_ASIDE)
