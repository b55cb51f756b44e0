"""`covid-cmsf evaluate finetune`, and the linear probe that learns from clips."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from covid_cmsf.cli.extract import (
    DEVICE,
    FORCE,
    LENGTH,
    MODALITY,
    PART,
    PROTOCOL,
    SEED,
    SIZE,
    SPLIT,
    STRIDE,
    WINDOWS,
    WORKERS,
    report_set_aside,
    stopped_by_sigterm,
    subject_and_clips,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

ALLOW = typer.Option(False, "--allow-shared-sources", help="Also if footage stands in both parts; the result says so.")
QUERY = typer.Option("test", "--query", help="Part to ask about: test, or val for tuning.")
VAL_SHARE = typer.Option(0.2, "--val-share", help="Share of the training sources that `val` is.")
JSON = typer.Option(False, "--json", help="Print the result as JSON instead of a table.")


def finetune(
    checkpoint: Path = typer.Argument(..., help="Weights; with --from-scratch the clips.", show_default=False),
    clips: Path | None = typer.Argument(None, help="A clip store, a CoCLR LMDB, or a folder of JPEG frames."),
    out: Path = typer.Option(..., "--out", "-o", help="Folder of the training.", show_default=False),
    from_scratch: str | None = typer.Option(None, help="An encoder of the zoo with random weights, as the control."),
    epochs: int | None = typer.Option(None, min=1, help="Instead of 500."),
    batch_size: int | None = typer.Option(None, min=2, help="Instead of 32."),
    lr: float | None = typer.Option(None, help="Of the head, instead of 0.001; the encoder has a tenth of it."),
    weight_decay: float | None = typer.Option(None, help="Instead of 0.001."),
    dropout: float | None = typer.Option(None, help="Before the classifier, instead of 0.9."),
    val_share: float = VAL_SHARE,
    crops: int | None = typer.Option(None, help="1, 5 or 10 at test; 10 when left out."),
    precision: str | None = typer.Option(None, help="fp32 or bf16."),
    query: str = QUERY,
    allow_shared_sources: bool = ALLOW,
    part: str | None = PART,
    modality: str | None = MODALITY,
    length: int | None = LENGTH,
    size: int | None = SIZE,
    stride: int | None = STRIDE,
    windows: int | None = WINDOWS,
    protocol: str = PROTOCOL,
    split: str | None = SPLIT,
    workers: int = WORKERS,
    device: str = DEVICE,
    seed: int = SEED,
    force: bool = FORCE,
    as_json: bool = JSON,
) -> None:
    """Train encoder and classifier on labeled clips (the recipe of Han et al.), then test once.

    The epoch is chosen on a part of the training sources. The same command continues when it was stopped.
    """
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "dropout": dropout}
    changes |= {"num_crops": crops, "val_share": val_share}
    shown = {"modality": modality, "length": length, "size": size, "stride": stride, "num_windows": windows}
    train_on_clips(
        "scratch" if from_scratch else "finetune", checkpoint, clips, {**changes, "precision": precision},
        {**shown, "protocol": protocol}, part=part, random=from_scratch, query=query,
        allow_shared_sources=allow_shared_sources, split=split, workers=workers, device=device, seed=seed,
        force=force, out=out, as_json=as_json,
    )  # fmt: skip


def train_on_clips(
    mode: str,
    checkpoint: Path,
    clips: Path | None,
    changes: dict[str, Any],
    shown: dict[str, Any],
    *,
    part: str | None,
    random: str | None,
    query: str,
    allow_shared_sources: bool,
    split: str | None,
    workers: int,
    device: str,
    seed: int,
    force: bool,
    out: Path | None,
    as_json: bool,
) -> None:
    """Fine-tuning, its control, and the linear probe on clips: one training, three recipes."""
    from covid_cmsf.devices import choose_device
    from covid_cmsf.evaluation.finetune import train_and_test
    from covid_cmsf.evaluation.recipes import recipe
    from covid_cmsf.evaluation.showing import showing_for
    from covid_cmsf.evaluation.tables import clip_table
    from covid_cmsf.logs import progress_bar

    if out is None:
        raise ValueError("training on clips needs --out: the folder for its checkpoint, probabilities and result")
    chosen = recipe(mode, **changes, seed=seed)
    subject, opened = subject_and_clips(
        checkpoint, clips, part=part, random=random, modality=shown["modality"], seed=seed
    )
    showing = showing_for(subject.card, **shown, seed=seed)
    with stopped_by_sigterm(), progress_bar("epochs", chosen.epochs) as advance:
        result = train_and_test(
            subject,
            opened,
            out,
            chosen,
            showing=showing,
            split=split,
            query=query,
            allow_shared_sources=allow_shared_sources,
            num_workers=workers,
            device=choose_device(device),
            replace=force,
            on_epoch=advance,
        )
    show(mode, result, clip_table(result), out / "result.json", as_json)
    report_set_aside(result.set_aside)


def show(kind: str, result: object, table: "RenderableType", out: Path | None, as_json: bool) -> None:
    """The result on stdout, and in a file where one is named."""
    from rich.console import Console

    from covid_cmsf.evaluation.results import result_values, write_result

    if out is not None:
        if not out.parent.is_dir():
            raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")
        write_result(out, kind, result)
    if as_json:
        typer.echo(json.dumps(result_values(kind, result)))
    else:
        Console().print(table)
