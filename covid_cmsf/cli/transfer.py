"""`covid-cmsf evaluate transfer`."""

from pathlib import Path

import typer

from covid_cmsf.cli.options import (
    Branch,
    Device,
    Force,
    Json,
    Size,
    Workers,
    interrupt_on_sigterm,
    print_result,
    report_skipped,
)

TRANSFER_DATASETS = "food101,cifar10,cifar100,sun397,cars,aircraft,dtd,pets,caltech101,flowers102"


def transfer(
    checkpoint: Path = typer.Argument(
        ..., help="Weights of an image encoder: ours, torchvision's, MSF's ...", show_default=False
    ),
    datasets: str = typer.Option(
        TRANSFER_DATASETS,
        "--datasets",
        help="Names with commas between; or a folder (with a / in it) with train/, val/, test/.",
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
    branch: Branch = None,
    size: Size = None,
    batch_size: int = typer.Option(64, "--batch-size", min=1, help="Images that pass the network together."),
    workers: Workers = 2,
    device: Device = "auto",
    seed: int = typer.Option(0, "--seed", min=0, help="Of the drawn val parts and of the search."),
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Measure how well an image encoder's frozen features transfer to other data sets.

    The paper's transfer table. For each data set: features of the center crop,
    logistic regression by LBFGS (iterations, learning rate and weight decay
    are searched on val), retrained on train + val, tested once.

    covid-cmsf evaluate transfer last.pt --datasets dtd --root data --out scores

    The same command resumes after a stop.
    OUT/<data set>/ gets features.safetensors, trials.journal and result.json,
    OUT/result.json the table's row. --trials 20 gives a first idea.
    """
    from covid_cmsf.devices import choose_device
    from covid_cmsf.evaluation.features.model import load_eval_model
    from covid_cmsf.evaluation.features.protocol import build_eval_protocol
    from covid_cmsf.evaluation.preflight import check_out_folder, features_bytes
    from covid_cmsf.evaluation.transfer.benchmark import benchmark_table, run_benchmark
    from covid_cmsf.evaluation.transfer.factory import check_names, is_path, open_datasets
    from covid_cmsf.evaluation.transfer.logistic import check_normalization
    from covid_cmsf.evaluation.transfer.search import check_executor
    from covid_cmsf.logs import progress_bar
    from covid_cmsf.preflight import Problem, attempt, raise_problems

    names = [name.strip() for name in datasets.split(",") if name.strip()]
    problems: list[Problem] = []
    if not names:
        problems.append(Problem(f"no data set is named; choose from {TRANSFER_DATASETS.replace(',', ', ')}"))
    attempt(problems, lambda: check_normalization(normalize))
    attempt(problems, lambda: check_executor(executor))
    compute_device = attempt(problems, lambda: choose_device(device))
    eval_model, eval_protocol = attempt(problems, lambda: load_eval_model(checkpoint, branch=branch)), None
    if eval_model is not None:
        metadata = eval_model.metadata
        eval_protocol = attempt(problems, lambda: build_eval_protocol(metadata, modality="frame", size=size))
    if root is None and not all(map(is_path, names)):
        problems.append(Problem("--root is needed: the folder where torchvision's data sets lie"))
        names = [name for name in names if is_path(name)]
    if download:
        raise_problems([*problems, *check_out_folder(out, 0, "the results")])  # nothing is fetched in vain
    open_sets = []
    for name in names:
        found = attempt(problems, lambda one=name: open_datasets([one], root or Path(), seed=seed, download=download))  # type: ignore[misc]
        open_sets += found or []
    attempt(problems, lambda: check_names(open_sets))
    num_features = 0 if eval_model is None else int(getattr(eval_model.network, "num_features", 0))
    num_images = sum(len(one.images.records) for one in open_sets)
    needed = features_bytes(num_images, num_windows=1, num_features=num_features)
    raise_problems([*problems, *check_out_folder(out, needed, f"the features of {num_images:,} images")])
    assert eval_model is not None and eval_protocol is not None and compute_device is not None
    out.mkdir(parents=True, exist_ok=True)
    with interrupt_on_sigterm():
        result = run_benchmark(
            eval_model, open_sets, out, eval_protocol=eval_protocol, normalize=normalize, num_trials=trials, seed=seed,
            executor=executor, device=compute_device, bar=progress_bar, batch_size=batch_size, num_workers=workers,
            replace=force,
        )  # fmt: skip
    print_result("transfer", result, benchmark_table(result), out / "result.json", as_json)
    report_skipped(result.skipped)
