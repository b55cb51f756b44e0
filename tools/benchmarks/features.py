"""A features file of ImageNet's size: written, read (with its hash), searched and probed; seconds and peak memory.

    python tools/benchmark.py features [--items 1331167] [--values 512] [--parts write,linear]

Random features around the centers of `--classes` classes, one window per item. Every part runs in a process of its own,
so that its peak is its own; memory is the largest resident set that the system has seen, imports and the pages of the
file that are mapped included.
"""

import multiprocessing
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import typer
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features, Provenance, load_features, save_features
from covid_cmsf.evaluation.features.inference import video_features
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.knn import evaluate_knn
from covid_cmsf.evaluation.probes.linear import evaluate_linear
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from tools.benchmarks.measure import JsonFile, print_results

Part = Callable[[Path], dict[str, float]]


def command(
    items: int = typer.Option(1_331_167, min=100, help="Images; ImageNet-1k has so many in train and val."),
    queries: int = typer.Option(1_000, min=1, help="Of these, for testing."),
    values: int = typer.Option(512, min=1, help="Size of a feature."),
    classes: int = typer.Option(100, min=2),
    parts: str = typer.Option("write,read,retrieval,knn,linear", help="What is measured; write comes first."),
    folder: Path = typer.Option(
        Path(tempfile.gettempdir()), "--folder", help="Where the file is written, and removed."
    ),
    json_file: JsonFile = None,
) -> None:
    """Features of 1.3 million items: write, read, retrieval, kNN, linear probe."""
    results: dict[str, float] = {"items": items, "queries": queries, "values": values, "classes": classes}
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "large.features"
        write = _Write(items, queries, values, classes)
        known: dict[str, Part] = {
            "write": write,
            "read": _read,
            "retrieval": _retrieval,
            "knn": _knn,
            "linear": _linear,
        }
        for name in parts.split(","):
            context = multiprocessing.get_context("spawn")
            with context.Pool(1) as pool:
                measured = pool.apply(_measure, (known[name], path))
            results |= {f"{name}_{key}": value for key, value in measured.items()}
            seconds, cpu_seconds, peak = (measured[key] for key in ("seconds", "cpu_seconds", "peak_gb"))
            typer.echo(f"{name}: {seconds:.0f} s ({cpu_seconds:.0f} s of CPU time), {peak:.1f} GB", err=True)
        results["file_gb"] = path.stat().st_size / 1e9
    print_results(results, json_file=json_file)


def _measure(part: Part, path: Path) -> dict[str, float]:
    start = time.perf_counter(), time.process_time()
    values = part(path)
    seconds, cpu_seconds = time.perf_counter() - start[0], time.process_time() - start[1]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6  # kilobytes
    return {**values, "seconds": seconds, "cpu_seconds": cpu_seconds, "peak_gb": peak}


class _Write:
    def __init__(self, items: int, queries: int, values: int, classes: int) -> None:
        self.items, self.queries, self.values, self.classes = items, queries, values, classes

    def __call__(self, path: Path) -> dict[str, float]:
        labels = torch.arange(self.items) % self.classes
        windows = _random_rows(labels, self.values)
        ids = tuple(f"train/n{label:08d}/n{label:08d}_{i}.JPEG" for i, label in enumerate(labels.tolist()))
        subsets = ("test",) * self.queries + ("train",) * (self.items - self.queries)
        names = tuple(f"n{label:08d}" for label in range(self.classes))
        window_videos = torch.arange(self.items)
        features = Features(
            VideoTable(ids, ids, labels, subsets, names, torch.zeros(self.items, dtype=torch.int64)),
            video_features(windows, window_videos, self.items),
            windows,
            window_videos,
            torch.zeros(self.items, dtype=torch.int64),
            made_up_provenance(),
        )
        start = time.perf_counter()
        save_features(path, features)
        return {"save_seconds": time.perf_counter() - start}


def _random_rows(labels: Tensor, values: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centers = torch.randn(int(labels.max()) + 1, values, generator=generator)
    rows = torch.empty(len(labels), values)
    for part, label in zip(rows.split(65_536), labels.split(65_536), strict=True):
        part.normal_(generator=generator).mul_(4).add_(centers[label])
    return rows


def made_up_provenance() -> Provenance:
    """Return the origin of features that no network computed."""
    protocol = EvalProtocol(
        modality="frame", mean=(0, 0, 0), std=(1, 1, 1), length=1, stride=1, size=224, num_windows=1
    )
    return Provenance(
        fingerprint="random", encoder="none", origin="random", checkpoint_sha256="", weights_sha256="", branch="online",
        eval_protocol=protocol, store_sha256="", split="1", precision="fp32", device="cpu", batch_size=1,
        software="benchmark",
    )  # fmt: skip


def _read(path: Path) -> dict[str, float]:
    return {"num_videos": len(load_features(path).videos)}


def _retrieval(path: Path) -> dict[str, float]:
    return {"r1": evaluate_retrieval(load_features(path)).recall[1]}


def _knn(path: Path) -> dict[str, float]:
    return {"top1": evaluate_knn(load_features(path)).top1[20]}


def _linear(path: Path) -> dict[str, float]:
    return {"top1": evaluate_linear(load_features(path), penalties=(0.01,)).scores.top1}
