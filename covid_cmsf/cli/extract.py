"""`covid-cmsf extract`."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from covid_cmsf.cli.options import (
    Branch,
    Device,
    Force,
    Length,
    Modality,
    Processes,
    Protocol,
    Seed,
    Size,
    Split,
    Stride,
    Windows,
    Workers,
    interrupt_on_sigterm,
    report_skipped,
)

if TYPE_CHECKING:
    from covid_cmsf.clips import Clips
    from covid_cmsf.evaluation.features.model import EvalModel


def extract(
    checkpoint: Path = typer.Argument(
        ..., help="Weights: our checkpoint or exchange file, CoCLR's, torchvision's, MSF's ...", show_default=False
    ),
    clips: Path | None = typer.Argument(None, help="A clip store, a CoCLR LMDB, or a folder of JPEG frames."),
    out: Path = typer.Option(..., "--out", "-o", help="The features file to write.", show_default=False),
    branch: Branch = None,
    random: str | None = typer.Option(
        None, "--random", help="An encoder of the zoo with random weights; then CLIPS is the only argument."
    ),
    modality: Modality = None,
    length: Length = None,
    size: Size = None,
    stride: Stride = None,
    windows: Windows = None,
    protocol: Protocol = "clean",
    split: Split = None,
    batch_size: int | None = typer.Option(
        None, "--batch-size", min=1, help="Windows that pass the network together: 16, of images 128, when left out."
    ),
    workers: Workers = 2,
    device: Device = "auto",
    processes: Processes = None,
    precision: str = typer.Option("fp32", "--precision", help="fp32, bf16 or fp16."),
    seed: Seed = 0,
    force: Force = False,
) -> None:
    """Write the features of every video of a split to one file, with the model and data that they came from.

    The same command resumes after a stop, and does nothing when the file is complete. Videos that cannot be read are
    listed and left out, and the exit code is 3.

    \b
    covid-cmsf extract runs/infonce CLIPS --out rgb.features
    """
    from covid_cmsf.devices import choose_devices
    from covid_cmsf.evaluation.features.extract import extract_features
    from covid_cmsf.evaluation.features.protocol import build_eval_protocol
    from covid_cmsf.evaluation.features.subsets import load_split
    from covid_cmsf.evaluation.render import describe_features
    from covid_cmsf.logs import progress_bar
    from covid_cmsf.preflight import Problem, attempt, raise_problems

    problems: list[Problem] = []
    open_model, open_data = model_and_clips_openers(
        checkpoint, clips, branch=branch, random=random, modality=modality, seed=seed
    )
    eval_model, opened = attempt(problems, open_model), attempt(problems, open_data)
    raise_problems(problems)
    assert eval_model is not None and opened is not None
    eval_protocol = build_eval_protocol(
        eval_model.metadata,
        protocol=protocol,
        modality=modality,
        length=length,
        size=size,
        stride=stride,
        num_windows=windows,
        seed=seed,
    )
    with interrupt_on_sigterm(), progress_bar("videos", len(load_split(opened, split).records)) as advance:
        features = extract_features(
            eval_model,
            opened,
            out,
            eval_protocol=eval_protocol,
            split=split,
            batch_size=batch_size,
            num_workers=workers,
            device=choose_devices(device, processes),
            precision=precision,
            replace=force,
            on_video=advance,
        )
    typer.echo(f"{out}: {describe_features(features)}")
    report_skipped(features.skipped)


def model_and_clips_openers(
    checkpoint: Path, clips: Path | None, *, branch: str | None, random: str | None, modality: str | None, seed: int
) -> "tuple[Callable[[], EvalModel], Callable[[], Clips]]":
    """Return what opens the network of the first argument and the clips of the second; with `random` clips come first.

    Both are tried, so that all problems are told at once.
    """
    from covid_cmsf.clips import open_clips
    from covid_cmsf.evaluation.features.model import create_random_model, load_eval_model

    if random is not None:
        if clips is not None or branch is not None:
            raise ValueError("random weights come from no checkpoint and have no branches: name the clips only")
        open_random = partial(create_random_model, random, modality=modality or "rgb", seed=seed)
        return open_random, partial(open_clips, checkpoint)
    if clips is None:
        raise ValueError("two arguments are needed: a checkpoint and clips")
    return partial(load_eval_model, checkpoint, branch=branch), partial(open_clips, clips)
