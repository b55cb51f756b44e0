"""Transfer of one encoder to several data sets: a row of the paper's table."""

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.transfer.datasets import DATASETS
from covid_cmsf.evaluation.transfer.evaluate import TransferResult, evaluate_transfer
from covid_cmsf.evaluation.transfer.factory import OpenedDataset
from covid_cmsf.evaluation.transfer.logistic import check_normalization
from covid_cmsf.evaluation.transfer.search import check_executor

logger = logging.getLogger(__name__)
MAX_CLASSES = 3  # printed; the result file has all
ProgressBar = Callable[[str, int], AbstractContextManager[Callable[[], None]]]


@dataclass(frozen=True)
class BenchmarkResult:
    """`values`: percent per data set, in the paper's order; `mean_over` names the data sets of `mean`."""

    encoder: str
    values: dict[str, float]
    mean: float
    mean_over: str
    datasets: list[TransferResult]

    @property
    def skipped(self) -> list[tuple[str, str, str]]:
        """Id, subset and reason of images without a result; ids have the data set in front."""
        return [
            (f"{one.dataset}: {name}", subset, reason) for one in self.datasets for name, subset, reason in one.skipped
        ]


def run_benchmark(
    eval_model: EvalModel,
    opened: Sequence[OpenedDataset],
    folder: Path,
    *,
    eval_protocol: EvalProtocol,
    normalize: str,
    num_trials: int,
    seed: int,
    executor: str,
    device: torch.device | str,
    bar: ProgressBar,
    batch_size: int | None = None,
    num_workers: int = 0,
    replace: bool = False,
) -> BenchmarkResult:
    """Evaluate every data set in its folder below `folder`; finished results are only read."""
    check_normalization(normalize)
    check_executor(executor)
    for one in opened:
        for difference in one.differences:
            logger.warning("%s: %s", one.name, difference)
    results = []
    for one in opened:
        dataset_folder = folder / one.name
        dataset_folder.mkdir(parents=True, exist_ok=True)
        with bar(f"{one.name}: images", len(one.images.records)) as advance:
            features = extract_features(
                eval_model, one.images, dataset_folder / "features.safetensors", eval_protocol=eval_protocol,
                batch_size=batch_size,
                num_workers=num_workers, device=device, replace=replace, on_video=advance,
            )  # fmt: skip
        with bar(f"{one.name}: trials", num_trials) as advance:
            result = evaluate_transfer(
                features, dataset_folder, dataset=one.name, metric=one.metric, normalize=normalize,
                num_trials=num_trials, seed=seed, executor=executor, device=device, replace=replace,
                differences=one.differences,
                on_trial=advance,
            )  # fmt: skip
        results.append(result)
    return summarize_results(eval_model.metadata.encoder, results)


def summarize_results(encoder: str, results: Sequence[TransferResult]) -> BenchmarkResult:
    """Sort results in the paper's order, other data sets last, and compute their mean."""
    order = [*DATASETS, *(one.dataset for one in results if one.dataset not in DATASETS)]
    results = sorted(results, key=lambda one: order.index(one.dataset))
    values = {one.dataset: one.value for one in results}
    return BenchmarkResult(
        encoder=encoder,
        values=values,
        mean=sum(values.values()) / len(values),
        mean_over="the ten data sets of Table A2" if list(values) == list(DATASETS) else ", ".join(values),
        datasets=list(results),
    )


def benchmark_table(result: BenchmarkResult) -> RenderableType:
    """Return the paper's row, with notes on metrics, the weakest classes and incomplete data sets."""
    columns = [DATASETS[name].column if name in DATASETS else name for name in result.values]
    table = Table("", *map(escape, columns), "Mean", title="Transfer, percent")
    table.add_row(result.encoder, *(f"{value:.1f}" for value in result.values.values()), f"{result.mean:.1f}")
    classes = [name for one, name in zip(result.datasets, columns, strict=True) if one.metric == "mean_per_class"]
    notes = [f"Mean over {escape(result.mean_over)}"]
    if classes:
        notes.append(f"{escape(', '.join(classes))}: mean per-class accuracy; the others: top-1")
    for one in result.datasets:
        weakest = sorted(one.per_class, key=lambda name: one.per_class[name])[:MAX_CLASSES]
        values = ", ".join(f"{escape(name)} {one.per_class[name]:.0f}" for name in weakest)
        notes.append(f"{escape(one.dataset)}, weakest of {len(one.per_class)} classes: {values}")
        notes += [f"[yellow]{escape(one.dataset)}: {escape(difference)}[/]" for difference in one.differences]
    return Group(table, *notes)
