"""`covid-cmsf evaluate ...`: features or checkpoints -> numbers."""

from pathlib import Path

import typer

from covid_cmsf.cli import compare, finetune, low_shot, transfer, unlabeled
from covid_cmsf.cli.cluster import with_engine
from covid_cmsf.cli.finetune import train_and_print
from covid_cmsf.cli.options import (
    AllowSharedSources,
    AllowStale,
    Branch,
    Center,
    Device,
    Features,
    Force,
    Gallery,
    Json,
    Length,
    Modality,
    Processes,
    Protocol,
    Query,
    ResultFile,
    Seed,
    Size,
    Split,
    Stride,
    ValFraction,
    Windows,
    Workers,
    print_result,
    report_skipped,
)

app = typer.Typer(
    no_args_is_help=True, help="Numbers: retrieval, linear probe, kNN, fine-tuning, fusion, comparison, baselines."
)


@app.command()
def retrieval(
    features: Features,
    gallery: Gallery = "train",
    query: Query = "test",
    center: Center = None,
    allow_shared_sources: AllowSharedSources = False,
    allow_stale: AllowStale = False,
    val_fraction: ValFraction = 0.2,
    seed: Seed = 0,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Measure R@1, 5, 10, 20, 50: is a video of the same class among the nearest? With a 95% interval.

    \b
    covid-cmsf evaluate retrieval rgb.features
    """
    from covid_cmsf.evaluation.preflight import load_checked
    from covid_cmsf.evaluation.render import retrieval_table
    from covid_cmsf.evaluation.retrieval import evaluate_retrieval

    (loaded,) = load_checked(
        [features], gallery=gallery, query=query, val_fraction=val_fraction, seed=seed,
        allow_shared_sources=allow_shared_sources, allow_stale=allow_stale, out=out,
    )  # fmt: skip
    result = evaluate_retrieval(
        loaded,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )
    print_result("retrieval", result, retrieval_table(result), out, as_json)
    report_skipped(loaded.skipped)


@app.command()
def linear(
    features: Path = typer.Argument(
        ..., help="A features file; or, with CLIPS, a checkpoint: then the probe learns from augmented clips."
    ),
    clips: Path | None = typer.Argument(None, help="Clips, to learn from augmented clips with a frozen encoder."),
    probe: str = typer.Option("protocol", "--probe", help="protocol, or compress: the probe of MSF and CMSF (images)."),
    gallery: Gallery = "train",
    query: Query = "test",
    allow_shared_sources: AllowSharedSources = False,
    allow_stale: AllowStale = False,
    val_fraction: ValFraction = 0.2,
    epochs: int | None = typer.Option(None, min=1, help="With CLIPS: instead of 100 (compress: 40)."),
    batch_size: int | None = typer.Option(None, min=2, help="With CLIPS: instead of 32 (256)."),
    lr: float | None = typer.Option(None, help="With CLIPS: instead of 0.1 (0.01)."),
    weight_decay: float | None = typer.Option(None, help="With CLIPS: instead of 0.001 (0.0001)."),
    crops: int | None = typer.Option(None, help="With CLIPS: 1, 5 or 10 at test; 10 when left out."),
    branch: Branch = None,
    modality: Modality = None,
    length: Length = None,
    size: Size = None,
    stride: Stride = None,
    windows: Windows = None,
    protocol: str | None = typer.Option(None, "--protocol", help="With CLIPS: clean (default) or coclr."),
    split: Split = None,
    workers: Workers = 2,
    device: Device = "auto",
    processes: Processes = None,
    seed: Seed = 0,
    force: Force = False,
    out: Path | None = typer.Option(None, "--out", "-o", help="JSON file; with CLIPS the folder of the training."),
    as_json: Json = False,
) -> None:
    """Train a linear probe on features (logistic regression), or on augmented clips with a frozen encoder.

    \b
    covid-cmsf evaluate linear rgb.features
    """
    overrides = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "num_crops": crops}
    protocol_options = {"modality": modality, "length": length, "size": size, "stride": stride, "num_windows": windows}
    from covid_cmsf.evaluation.probes.linear import PROBES, evaluate_linear

    if clips is not None:
        if gallery != "train":
            raise ValueError("on clips the subset to learn from follows from --query; leave --gallery out")
        if probe not in PROBES:
            raise ValueError(f"unknown probe {probe!r}; choose from {', '.join(PROBES)}")
        mode, val_options = ("compress", {}) if probe == "compress" else ("linear", {"val_fraction": val_fraction})
        train_and_print(
            mode, features, clips, {**overrides, **val_options}, {**protocol_options, "protocol": protocol or "clean"},
            branch=branch, random=None, query=query, allow_shared_sources=allow_shared_sources, split=split,
            workers=workers, device=device, processes=processes, seed=seed, force=force, out=out, as_json=as_json,
        )  # fmt: skip
        return
    clip_options = {**overrides, **protocol_options, "branch": branch, "protocol": protocol, "split": split}
    clip_options["processes"] = processes
    if given := [name.removeprefix("num_") for name, value in clip_options.items() if value is not None]:
        raise ValueError(f"--{given[0].replace('_', '-')} goes with CLIPS; a features file has it settled already")
    from covid_cmsf.evaluation.preflight import load_checked
    from covid_cmsf.evaluation.render import linear_table

    (loaded,) = load_checked(
        [features], linear=probe == "protocol", gallery=gallery, query=query, val_fraction=val_fraction, seed=seed,
        allow_shared_sources=allow_shared_sources, allow_stale=allow_stale, out=out,
    )  # fmt: skip
    result = evaluate_linear(
        loaded,
        gallery=gallery,
        query=query,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
        probe=probe,
    )
    print_result("linear", result, linear_table(result), out, as_json)
    report_skipped(loaded.skipped)


@app.command()
def knn(
    features: Features,
    k: list[int] = typer.Option([1, 20], "--k", min=1, help="Neighbors that vote; may be given several times."),
    gallery: Gallery = "train",
    query: Query = "test",
    center: Center = None,
    allow_shared_sources: AllowSharedSources = False,
    allow_stale: AllowStale = False,
    val_fraction: ValFraction = 0.2,
    seed: Seed = 0,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Classify by a vote of the k nearest neighbors; every vote counts the same.

    \b
    covid-cmsf evaluate knn rgb.features
    """
    from covid_cmsf.evaluation.knn import evaluate_knn
    from covid_cmsf.evaluation.preflight import load_checked
    from covid_cmsf.evaluation.render import knn_table

    (loaded,) = load_checked(
        [features], num_neighbors=k, gallery=gallery, query=query, val_fraction=val_fraction, seed=seed,
        allow_shared_sources=allow_shared_sources, allow_stale=allow_stale, out=out,
    )  # fmt: skip
    result = evaluate_knn(
        loaded,
        num_neighbors=k,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )
    print_result("knn", result, knn_table(result), out, as_json)
    report_skipped(loaded.skipped)


app.command("low-shot")(low_shot.low_shot)
app.command()(finetune.finetune)
app.command()(finetune.attentive)
app.command()(with_engine(transfer.transfer))
app.command()(unlabeled.neighbors)
app.command()(unlabeled.unlabeled)


@app.command()
def fusion(
    first: Path = typer.Argument(..., help="Features or probabilities of one stream.", show_default=False),
    second: Path = typer.Argument(..., help="The same of the other.", show_default=False),
    gallery: Gallery = "train",
    query: Query = "test",
    center: Center = None,
    allow_shared_sources: AllowSharedSources = False,
    allow_stale: AllowStale = False,
    val_fraction: ValFraction = 0.2,
    seed: Seed = 0,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Fuse two streams: sum similarities, average probabilities, over the videos that both files have.

    \b
    covid-cmsf evaluate fusion rgb.features flow.features
    """
    from covid_cmsf.evaluation.features.file import holds_probabilities, load_probabilities
    from covid_cmsf.evaluation.fusion import evaluate_fusion, fuse_probabilities
    from covid_cmsf.evaluation.preflight import check_result_file, load_checked
    from covid_cmsf.evaluation.render import fusion_table
    from covid_cmsf.preflight import raise_problems

    if holds_probabilities(first):
        raise_problems([] if out is None else check_result_file(out))
        result_of_probabilities = fuse_probabilities(load_probabilities(first), load_probabilities(second), seed=seed)
        print_result("fusion", result_of_probabilities, fusion_table(result_of_probabilities), out, as_json)
        return
    streams = load_checked(
        [first, second], gallery=gallery, query=query, val_fraction=val_fraction, seed=seed,
        allow_shared_sources=allow_shared_sources, allow_stale=allow_stale, out=out,
    )  # fmt: skip
    result = evaluate_fusion(
        streams[0],
        streams[1],
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )
    print_result("fusion", result, fusion_table(result), out, as_json)
    report_skipped([*streams[0].skipped, *streams[1].skipped])


app.command()(compare.compare)


@app.command()
def baselines(
    clips: Path = typer.Argument(..., help="A clip store, a CoCLR LMDB, or a folder of JPEG frames."),
    encoder: str = typer.Option("s3d_tiny", "--random", help="The encoder that gets random weights."),
    protocol: Protocol = "clean",
    split: Split = None,
    gallery: Gallery = "train",
    query: Query = "test",
    features: Path | None = typer.Option(None, "--features", help="Folder to keep their features files in."),
    workers: Workers = 2,
    device: Device = "auto",
    seed: Seed = 0,
    out: ResultFile = None,
    as_json: Json = False,
) -> None:
    """Measure what needs no training: chance, color and flow histograms, random weights.

    \b
    covid-cmsf evaluate baselines CLIPS
    """
    from contextlib import nullcontext
    from tempfile import TemporaryDirectory, gettempdir

    from covid_cmsf.clips import open_clips
    from covid_cmsf.devices import choose_device
    from covid_cmsf.evaluation.baselines import check_baselines, create_baseline_models, evaluate_baselines
    from covid_cmsf.evaluation.preflight import check_out_folder, check_result_file
    from covid_cmsf.evaluation.render import baselines_table
    from covid_cmsf.logs import progress_bar
    from covid_cmsf.preflight import attempt, raise_problems

    problems = [] if out is None else check_result_file(out)
    problems += [] if features is None else check_out_folder(features, 0, "the features")
    compute_device = attempt(problems, lambda: choose_device(device))
    opened = attempt(problems, lambda: open_clips(clips))
    if opened is not None:
        problems += check_baselines(
            opened, encoder=encoder, protocol=protocol, split=split, gallery=gallery, query=query, seed=seed,
            folder=features or Path(gettempdir()),
        )  # fmt: skip
    raise_problems(problems)
    assert opened is not None and compute_device is not None
    if features is not None:
        features.mkdir(parents=True, exist_ok=True)
    features_folder = TemporaryDirectory() if features is None else nullcontext(str(features))
    with (
        features_folder as folder,
        progress_bar("baselines", len(create_baseline_models(opened, encoder, seed))) as advance,
    ):
        result = evaluate_baselines(
            opened,
            Path(folder),
            encoder=encoder,
            protocol=protocol,
            split=split,
            gallery=gallery,
            query=query,
            seed=seed,
            num_workers=workers,
            device=compute_device,
            on_baseline=advance,
        )
    print_result("baselines", result, baselines_table(result), out, as_json)
    report_skipped(result.skipped)
