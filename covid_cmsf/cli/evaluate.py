"""`covid-cmsf evaluate ...`: features or checkpoints -> numbers."""

from pathlib import Path

import typer

from covid_cmsf.cli import evaluate_clips, transfer
from covid_cmsf.cli.evaluate_clips import ALLOW, JSON, QUERY, VAL_SHARE, show, train_on_clips
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
)

app = typer.Typer(no_args_is_help=True, help="Numbers: retrieval, linear probe, kNN, fine-tuning, fusion, baselines.")

FEATURES = typer.Argument(..., help="A file that `covid-cmsf extract` wrote.", show_default=False)
GALLERY = typer.Option("train", "--gallery", help="Part to search in or learn from: train, or fit for tuning.")
CENTER = typer.Option(None, "--center", help="train, own or none; by default train (clean), own (coclr).")
OUT = typer.Option(None, "--out", "-o", help="JSON file for the result.")


@app.command()
def retrieval(
    features: Path = FEATURES,
    gallery: str = GALLERY,
    query: str = QUERY,
    center: str | None = CENTER,
    allow_shared_sources: bool = ALLOW,
    val_share: float = VAL_SHARE,
    seed: int = SEED,
    out: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """R@1, 5, 10, 20, 50: is a video of the same class among the nearest? With a 95% interval."""
    from covid_cmsf.evaluation.features import load_features
    from covid_cmsf.evaluation.retrieval import evaluate_retrieval
    from covid_cmsf.evaluation.tables import retrieval_table

    loaded = load_features(features)
    result = evaluate_retrieval(
        loaded,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_share=val_share,
        seed=seed,
    )
    show("retrieval", result, retrieval_table(result), out, as_json)
    report_set_aside(loaded.set_aside)


@app.command()
def linear(
    features: Path = typer.Argument(
        ..., help="A features file; or, with CLIPS, a checkpoint: then the probe learns from augmented clips."
    ),
    clips: Path | None = typer.Argument(None, help="Clips, to learn from augmented clips with a frozen encoder."),
    probe: str = typer.Option("protocol", "--probe", help="protocol, or compress: the probe of MSF and CMSF (images)."),
    gallery: str = GALLERY,
    query: str = QUERY,
    allow_shared_sources: bool = ALLOW,
    val_share: float = VAL_SHARE,
    epochs: int | None = typer.Option(None, min=1, help="With CLIPS: instead of 100 (compress: 40)."),
    batch_size: int | None = typer.Option(None, min=2, help="With CLIPS: instead of 32 (256)."),
    lr: float | None = typer.Option(None, help="With CLIPS: instead of 0.1 (0.01)."),
    weight_decay: float | None = typer.Option(None, help="With CLIPS: instead of 0.001 (0.0001)."),
    crops: int | None = typer.Option(None, help="With CLIPS: 1, 5 or 10 at test; 10 when left out."),
    part: str | None = PART,
    modality: str | None = MODALITY,
    length: int | None = LENGTH,
    size: int | None = SIZE,
    stride: int | None = STRIDE,
    windows: int | None = WINDOWS,
    protocol: str | None = typer.Option(None, "--protocol", help="With CLIPS: clean (default) or coclr."),
    split: str | None = SPLIT,
    workers: int = WORKERS,
    device: str = DEVICE,
    seed: int = SEED,
    force: bool = FORCE,
    out: Path | None = typer.Option(None, "--out", "-o", help="JSON file; with CLIPS the folder of the training."),
    as_json: bool = JSON,
) -> None:
    """Linear probe on features (logistic regression), or on augmented clips with a frozen encoder."""
    changes = {"epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "num_crops": crops}
    shown = {"modality": modality, "length": length, "size": size, "stride": stride, "num_windows": windows}
    from covid_cmsf.evaluation.linear import PROBES, evaluate_linear

    if clips is not None:
        if gallery != "train":
            raise ValueError("on clips the part to learn from follows from --query; leave --gallery out")
        if probe not in PROBES:
            raise ValueError(f"unknown probe {probe!r}; choose from {', '.join(PROBES)}")
        mode, held_out = ("compress", {}) if probe == "compress" else ("linear", {"val_share": val_share})
        train_on_clips(
            mode, features, clips, {**changes, **held_out}, {**shown, "protocol": protocol or "clean"},
            part=part, random=None, query=query, allow_shared_sources=allow_shared_sources, split=split,
            workers=workers, device=device, seed=seed, force=force, out=out, as_json=as_json,
        )  # fmt: skip
        return
    unused = {**changes, **shown, "part": part, "protocol": protocol, "split": split}
    if said := [name.removeprefix("num_") for name, value in unused.items() if value is not None]:
        raise ValueError(f"--{said[0].replace('_', '-')} goes with CLIPS; a features file has it settled already")
    from covid_cmsf.evaluation.features import load_features
    from covid_cmsf.evaluation.tables import linear_table

    loaded = load_features(features)
    result = evaluate_linear(
        loaded,
        gallery=gallery,
        query=query,
        allow_shared_sources=allow_shared_sources,
        val_share=val_share,
        seed=seed,
        probe=probe,
    )
    show("linear", result, linear_table(result), out, as_json)
    report_set_aside(loaded.set_aside)


@app.command()
def knn(
    features: Path = FEATURES,
    k: list[int] = typer.Option([1, 20], "--k", min=1, help="Neighbors that vote; may be given several times."),
    gallery: str = GALLERY,
    query: str = QUERY,
    center: str | None = CENTER,
    allow_shared_sources: bool = ALLOW,
    val_share: float = VAL_SHARE,
    seed: int = SEED,
    out: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """The k nearest neighbors vote on the class; every vote counts the same."""
    from covid_cmsf.evaluation.features import load_features
    from covid_cmsf.evaluation.knn import evaluate_knn
    from covid_cmsf.evaluation.tables import knn_table

    loaded = load_features(features)
    result = evaluate_knn(
        loaded,
        num_neighbors=k,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_share=val_share,
        seed=seed,
    )
    show("knn", result, knn_table(result), out, as_json)
    report_set_aside(loaded.set_aside)


app.command()(evaluate_clips.finetune)
app.command()(transfer.transfer)


@app.command()
def fusion(
    first: Path = typer.Argument(..., help="Features or probabilities of one stream.", show_default=False),
    second: Path = typer.Argument(..., help="The same of the other.", show_default=False),
    gallery: str = GALLERY,
    query: str = QUERY,
    center: str | None = CENTER,
    allow_shared_sources: bool = ALLOW,
    val_share: float = VAL_SHARE,
    seed: int = SEED,
    out: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """Two streams together: summed similarities and averaged probabilities of the videos that both files have."""
    from covid_cmsf.evaluation.features import load_features
    from covid_cmsf.evaluation.fusion import evaluate_fusion, fuse_probabilities
    from covid_cmsf.evaluation.probabilities import holds_probabilities, load_probabilities
    from covid_cmsf.evaluation.tables import fusion_table

    if holds_probabilities(first):
        answers = fuse_probabilities(load_probabilities(first), load_probabilities(second), seed=seed)
        show("fusion", answers, fusion_table(answers), out, as_json)
        return
    streams = load_features(first), load_features(second)
    result = evaluate_fusion(
        *streams,
        gallery=gallery,
        query=query,
        centering=center,
        allow_shared_sources=allow_shared_sources,
        val_share=val_share,
        seed=seed,
    )
    show("fusion", result, fusion_table(result), out, as_json)
    report_set_aside([*streams[0].set_aside, *streams[1].set_aside])


@app.command()
def baselines(
    clips: Path = typer.Argument(..., help="A clip store, a CoCLR LMDB, or a folder of JPEG frames."),
    encoder: str = typer.Option("s3d_tiny", "--random", help="The encoder that gets random weights."),
    protocol: str = PROTOCOL,
    split: str | None = SPLIT,
    gallery: str = GALLERY,
    query: str = QUERY,
    features: Path | None = typer.Option(None, "--features", help="Folder to keep their features files in."),
    workers: int = WORKERS,
    device: str = DEVICE,
    seed: int = SEED,
    out: Path | None = OUT,
    as_json: bool = JSON,
) -> None:
    """What costs nothing: chance, color and flow histograms, random weights."""
    from contextlib import nullcontext
    from tempfile import TemporaryDirectory

    from covid_cmsf.clips import open_clips
    from covid_cmsf.devices import choose_device
    from covid_cmsf.evaluation.baselines import baseline_subjects, evaluate_baselines
    from covid_cmsf.evaluation.tables import baselines_table
    from covid_cmsf.logs import progress_bar

    opened = open_clips(clips)
    if features is not None:
        features.mkdir(parents=True, exist_ok=True)
    kept = TemporaryDirectory() if features is None else nullcontext(str(features))
    with kept as folder, progress_bar("baselines", len(baseline_subjects(opened, encoder, seed))) as advance:
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
            device=choose_device(device),
            on_baseline=advance,
        )
    show("baselines", result, baselines_table(result), out, as_json)
    report_set_aside(result.set_aside)
