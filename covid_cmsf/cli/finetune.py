"""`covid-cmsf evaluate finetune` and `attentive`, and the linear probe that learns from clips."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from covid_cmsf.cli.extract import model_and_clips_openers
from covid_cmsf.cli.options import (
    AllowSharedSources,
    Branch,
    Device,
    Force,
    Json,
    Length,
    Modality,
    Processes,
    Protocol,
    Query,
    Seed,
    Size,
    Split,
    Stride,
    ValFraction,
    Windows,
    Workers,
    interrupt_on_sigterm,
    print_result,
    report_skipped,
)


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
    val_fraction: ValFraction = 0.2,
    crops: int | None = typer.Option(None, help="1, 5 or 10 at test; 10 when left out."),
    precision: str | None = typer.Option(None, help="fp32 or bf16."),
    query: Query = "test",
    allow_shared_sources: AllowSharedSources = False,
    branch: Branch = None,
    modality: Modality = None,
    length: Length = None,
    size: Size = None,
    stride: Stride = None,
    windows: Windows = None,
    protocol: Protocol = "clean",
    split: Split = None,
    workers: Workers = 2,
    device: Device = "auto",
    processes: Processes = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Train encoder and classifier on labeled clips (the recipe of Han et al.), then test once.

    The epoch is chosen on held-out training sources. The same command resumes after a stop.

    \b
    covid-cmsf evaluate finetune runs/infonce CLIPS --out finetuned
    """
    overrides = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "dropout": dropout}
    overrides |= {"num_crops": crops, "val_fraction": val_fraction}
    protocol_options = {"modality": modality, "length": length, "size": size, "stride": stride, "num_windows": windows}
    train_and_print(
        "scratch" if from_scratch else "finetune", checkpoint, clips, {**overrides, "precision": precision},
        {**protocol_options, "protocol": protocol}, branch=branch, random=from_scratch, query=query,
        allow_shared_sources=allow_shared_sources, split=split, workers=workers, device=device,
        processes=processes, seed=seed, force=force, out=out, as_json=as_json,
    )  # fmt: skip


def attentive(
    checkpoint: Path = typer.Argument(..., help="Weights.", show_default=False),
    clips: Path = typer.Argument(..., help="A clip store, a CoCLR LMDB, or a folder of JPEG frames."),
    out: Path = typer.Option(..., "--out", "-o", help="Folder of the trainings.", show_default=False),
    epochs: int | None = typer.Option(None, min=1, help="Instead of 20."),
    batch_size: int | None = typer.Option(None, min=2, help="Instead of 32."),
    lr: list[float] = typer.Option(
        [], help="Learning rate; several: the best on validation. Default: 0.0003, 0.001 and 0.003."
    ),
    weight_decay: float | None = typer.Option(None, help="Instead of 0.01."),
    val_fraction: ValFraction = 0.2,
    crops: int | None = typer.Option(None, help="1, 5 or 10 at test; 1 when left out."),
    precision: str | None = typer.Option(None, help="fp32 or bf16."),
    query: Query = "test",
    allow_shared_sources: AllowSharedSources = False,
    branch: Branch = None,
    modality: Modality = None,
    length: Length = None,
    size: Size = None,
    stride: Stride = None,
    windows: Windows = None,
    protocol: Protocol = "clean",
    split: Split = None,
    workers: Workers = 2,
    device: Device = "auto",
    processes: Processes = None,
    seed: Seed = 0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Train an attentive probe: a query that attends to the feature map of a frozen encoder, then test once.

    Epoch and learning rate are chosen on held-out training sources. The same command resumes after a stop.

    \b
    covid-cmsf evaluate attentive runs/infonce CLIPS --out attentive
    """
    from covid_cmsf.evaluation.finetune.config import ATTENTIVE_LRS

    overrides = {"epochs": epochs, "batch_size": batch_size, "weight_decay": weight_decay, "precision": precision}
    overrides |= {"num_crops": crops, "val_fraction": val_fraction, "lr": lr[0] if lr else None}
    protocol_options = {"modality": modality, "length": length, "size": size, "stride": stride, "num_windows": windows}
    train_and_print(
        "attentive", checkpoint, clips, overrides, {**protocol_options, "protocol": protocol}, branch=branch,
        random=None, query=query, allow_shared_sources=allow_shared_sources, split=split, workers=workers,
        device=device, processes=processes, seed=seed, force=force, out=out, as_json=as_json,
        lrs=tuple(lr) or ATTENTIVE_LRS,
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
    processes: int | None,
    seed: int,
    force: bool,
    out: Path | None,
    as_json: bool,
    lrs: Sequence[float] = (),
) -> None:
    """Train and test a classifier on clips and print the result; the recipe says what is trained."""
    from covid_cmsf.devices import choose_devices
    from covid_cmsf.evaluation.features.protocol import build_eval_protocol
    from covid_cmsf.evaluation.finetune.config import finetune_config
    from covid_cmsf.evaluation.finetune.preflight import check_finetune
    from covid_cmsf.evaluation.finetune.process_group import num_sharing
    from covid_cmsf.evaluation.finetune.run import run_finetune
    from covid_cmsf.evaluation.render import clip_table
    from covid_cmsf.logs import progress_bar
    from covid_cmsf.preflight import Problem, attempt, raise_problems

    problems: list[Problem] = []
    if out is None:
        problems.append(
            Problem("training on clips needs --out: the folder for its checkpoint, probabilities and result")
        )
    config = attempt(problems, lambda: finetune_config(mode, **overrides, seed=seed))
    devices = attempt(problems, lambda: choose_devices(device, processes))
    if config is not None and devices is not None and processes is None:
        devices = devices[: num_sharing(config.batch_size, len(devices))]
    open_model, open_data = model_and_clips_openers(
        checkpoint, clips, branch=branch, random=random, modality=protocol_options["modality"], seed=seed
    )
    eval_model, opened, eval_protocol = attempt(problems, open_model), attempt(problems, open_data), None
    if eval_model is not None:
        metadata = eval_model.metadata
        eval_protocol = attempt(problems, lambda: build_eval_protocol(metadata, **protocol_options, seed=seed))
    subset_options: dict[str, Any] = {"split": split, "query": query, "allow_shared_sources": allow_shared_sources}
    subset_options["lrs"] = lrs
    num_processes = 1 if devices is None else len(devices)
    if problems:  # else `run_finetune` checks
        checked = check_finetune(
            out, config, eval_model, opened, eval_protocol, **subset_options, num_processes=num_processes
        )
        raise_problems([*problems, *checked])
    assert out is not None and config is not None and devices is not None
    assert eval_model is not None and opened is not None and eval_protocol is not None
    with interrupt_on_sigterm(), progress_bar("epochs", config.epochs * max(1, len(lrs))) as advance:
        result = run_finetune(
            eval_model,
            opened,
            out,
            config,
            eval_protocol=eval_protocol,
            **subset_options,
            num_workers=workers,
            device=devices,
            replace=force,
            on_epoch=advance,
        )
    print_result(mode, result, clip_table(result), out / "result.json", as_json)
    report_skipped(result.skipped)
