"""`covid-cmsf evaluate finetune`, and the linear probe that learns from clips."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from covid_cmsf.cli.extract import interrupt_on_sigterm, open_model_and_clips, report_skipped
from covid_cmsf.cli.options import (
    ALLOW_SHARED_SOURCES,
    BRANCH,
    DEVICE,
    FORCE,
    JSON,
    LENGTH,
    MODALITY,
    PROTOCOL,
    QUERY,
    SEED,
    SIZE,
    SPLIT,
    STRIDE,
    VAL_FRACTION,
    WINDOWS,
    WORKERS,
)

if TYPE_CHECKING:
    from rich.console import RenderableType


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
    val_fraction: float = VAL_FRACTION,
    crops: int | None = typer.Option(None, help="1, 5 or 10 at test; 10 when left out."),
    precision: str | None = typer.Option(None, help="fp32 or bf16."),
    query: str = QUERY,
    allow_shared_sources: bool = ALLOW_SHARED_SOURCES,
    branch: str | None = BRANCH,
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
    overrides = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "dropout": dropout}
    overrides |= {"num_crops": crops, "val_fraction": val_fraction}
    protocol_options = {"modality": modality, "length": length, "size": size, "stride": stride, "num_windows": windows}
    train_and_print(
        "scratch" if from_scratch else "finetune", checkpoint, clips, {**overrides, "precision": precision},
        {**protocol_options, "protocol": protocol}, branch=branch, random=from_scratch, query=query,
        allow_shared_sources=allow_shared_sources, split=split, workers=workers, device=device, seed=seed,
        force=force, out=out, as_json=as_json,
    )  # fmt: skip


def train_and_print(
    mode: str,
    checkpoint: Path,
    clips: Path | None,
    overrides: dict[str, Any],
    protocol_options: dict[str, Any],
    *,
    branch: str | None,
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
    from covid_cmsf.evaluation.features.protocol import build_eval_protocol
    from covid_cmsf.evaluation.finetune.config import finetune_config
    from covid_cmsf.evaluation.finetune.run import run_finetune
    from covid_cmsf.evaluation.render import clip_table
    from covid_cmsf.logs import progress_bar

    if out is None:
        raise ValueError("training on clips needs --out: the folder for its checkpoint, probabilities and result")
    config = finetune_config(mode, **overrides, seed=seed)
    eval_model, opened = open_model_and_clips(
        checkpoint, clips, branch=branch, random=random, modality=protocol_options["modality"], seed=seed
    )
    eval_protocol = build_eval_protocol(eval_model.metadata, **protocol_options, seed=seed)
    with interrupt_on_sigterm(), progress_bar("epochs", config.epochs) as advance:
        result = run_finetune(
            eval_model,
            opened,
            out,
            config,
            eval_protocol=eval_protocol,
            split=split,
            query=query,
            allow_shared_sources=allow_shared_sources,
            num_workers=workers,
            device=choose_device(device),
            replace=force,
            on_epoch=advance,
        )
    print_result(mode, result, clip_table(result), out / "result.json", as_json)
    report_skipped(result.skipped)


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
