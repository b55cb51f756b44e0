"""`covid-cmsf evaluate transfer`."""

from pathlib import Path

import typer

from covid_cmsf.cli.evaluate_clips import JSON, show
from covid_cmsf.cli.extract import DEVICE, FORCE, PART, SIZE, WORKERS, report_set_aside, stopped_by_sigterm

NAMES = "food101,cifar10,cifar100,sun397,cars,aircraft,dtd,pets,caltech101,flowers102"


def transfer(
    checkpoint: Path = typer.Argument(
        ..., help="Weights of an image encoder: ours, torchvision's, MSF's ...", show_default=False
    ),
    datasets: str = typer.Option(
        NAMES, "--datasets", help="Names with commas between; or a folder (with a / in it) with train/, val/, test/."
    ),
    root: Path | None = typer.Option(None, "--root", help="Where torchvision's data sets lie, one folder each."),
    out: Path = typer.Option(
        ..., "--out", "-o", help="Folder for features, trials and results; made if need be.", show_default=False
    ),
    trials: int = typer.Option(200, "--trials", min=1, help="Settings to try on each data set."),
    normalize: str = typer.Option(
        "standardize", "--normalize", help="none, unit (rows of length 1) or standardize (unit, then each dimension)."
    ),
    download: bool = typer.Option(False, "--download", help="Fetch data sets that are not there into ROOT."),
    executor: str = typer.Option("local", "--executor", help="local, or ray: Ray Tune, many trials at once."),
    part: str | None = PART,
    size: int | None = SIZE,
    batch_size: int = typer.Option(64, "--batch-size", min=1, help="Images that pass the network together."),
    workers: int = WORKERS,
    device: str = DEVICE,
    seed: int = typer.Option(0, "--seed", min=0, help="Of the drawn val parts and of the search."),
    force: bool = FORCE,
    as_json: bool = JSON,
) -> None:
    """How well do an image encoder's frozen features serve other data sets?

    The paper's transfer table. For each data set: features of the center crop,
    logistic regression by LBFGS (iterations, learning rate and weight decay
    are searched on val), retrained on train + val, tested once.

    covid-cmsf evaluate transfer last.pt --datasets dtd --root data --out scores

    The same command continues when it was stopped; what is done stays.
    OUT/<data set>/ gets features.safetensors, trials.journal and result.json,
    OUT/result.json the table's row. --trials 20 gives a first idea.
    """
    from covid_cmsf.devices import choose_device
    from covid_cmsf.evaluation.showing import showing_for
    from covid_cmsf.evaluation.subjects import subject_from
    from covid_cmsf.evaluation.transfer.benchmark import benchmark_table, run_benchmark
    from covid_cmsf.evaluation.transfer.opening import is_path, open_datasets
    from covid_cmsf.logs import progress_bar

    names = [name.strip() for name in datasets.split(",") if name.strip()]
    if not names:
        raise ValueError(f"no data set is named; choose from {NAMES.replace(',', ', ')}")
    if root is None and not all(map(is_path, names)):
        raise ValueError("--root is needed: the folder where torchvision's data sets lie")
    chosen = choose_device(device)
    subject = subject_from(checkpoint, part=part)
    showing = showing_for(subject.card, modality="frame", size=size)
    opened = open_datasets(names, root or Path(), seed=seed, download=download)
    out.mkdir(parents=True, exist_ok=True)
    with stopped_by_sigterm():
        result = run_benchmark(
            subject, opened, out, showing=showing, normalize=normalize, num_trials=trials, seed=seed,
            executor=executor, device=chosen, bar=progress_bar, batch_size=batch_size, num_workers=workers,
            replace=force,
        )  # fmt: skip
    show("transfer", result, benchmark_table(result), out / "result.json", as_json)
    report_set_aside(result.set_aside)
