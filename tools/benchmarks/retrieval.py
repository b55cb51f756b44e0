"""Nearest neighbors of 3783 queries among 9537 videos of 1024 values (UCF-101, split 1): ours against faiss.

    python tools/benchmark.py retrieval [--threads 1]

Both sides search exactly, take turns in one run and have the same threads; a ratio above 1 means that ours is faster.
Ours breaks ties by index and gives the same answer for any block size, which faiss does not promise.
"""

import os
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import typer
from torch import Tensor

from covid_cmsf.evaluation.nearest import nearest
from tools.benchmarks.measure import JsonFile, print_results, summarize_times

Times = dict[str, list[tuple[float, float]]]  # side: seconds by the clock and of CPU


def command(
    queries: int = typer.Option(3783, min=1),
    gallery: int = typer.Option(9537, min=1),
    values: int = typer.Option(1024, min=1, help="Size of a feature."),
    k: int = typer.Option(50, min=1, help="Neighbors."),
    threads: int = typer.Option(1, min=1, help="Threads of both sides."),
    repeats: int = typer.Option(9, min=1, help="Rounds; medians count."),
    json_file: JsonFile = None,
) -> None:
    """Exact retrieval: ours against faiss IndexFlatIP."""
    _restart_with_threads(threads)
    try:
        import faiss
    except ImportError:
        raise typer.BadParameter("the peer is missing: pip install faiss-cpu") from None
    faiss.omp_set_num_threads(threads)
    query_features, gallery_features = (
        _random_unit_vectors(queries, values, seed=1),
        _random_unit_vectors(gallery, values, seed=0),
    )
    faiss_index = faiss.IndexFlatIP(values)
    faiss_index.add(gallery_features.numpy())
    variants: dict[str, Callable[[], Any]] = {
        "faiss": lambda: torch.from_numpy(faiss_index.search(query_features.numpy(), k)[1]),
        "ours": lambda: nearest(query_features, gallery_features, k),
    }
    found = {name: search() for name, search in variants.items()}  # warms up
    same = float((found["faiss"] == found["ours"]).double().mean())
    results = {"queries": queries, "gallery": gallery, "values": values, "k": k, "threads": threads}
    print_results({**results, "same_neighbors": same, **_compare(_measure(variants, repeats))}, json_file=json_file)


def _measure(variants: dict[str, Callable[[], Any]], repeats: int) -> Times:
    times: Times = {name: [] for name in variants}
    for _ in range(repeats):
        for name, search in variants.items():
            clock, cpu = time.perf_counter(), time.process_time()
            search()
            times[name].append((time.perf_counter() - clock, time.process_time() - cpu))
    return times


def _compare(times: Times) -> dict[str, float]:
    """Spread of both sides and the median of the rounds' ratios, by the clock and in CPU time."""
    results: dict[str, float] = {}
    for index, clock_name in enumerate(("clock", "cpu")):
        by_side = {name: [pair[index] for pair in pairs] for name, pairs in times.items()}
        for name, seconds in by_side.items():
            results |= {f"{name}_{clock_name}_{key}": value for key, value in summarize_times(seconds).items()}
        ratios = [theirs / ours for theirs, ours in zip(by_side["faiss"], by_side["ours"], strict=True)]
        results[f"{clock_name}_ratio"] = statistics.median(ratios)
        results[f"{clock_name}_best_ratio"] = min(by_side["faiss"]) / min(by_side["ours"])
    return results


def _random_unit_vectors(count: int, values: int, *, seed: int) -> Tensor:
    rows = torch.randn(count, values, generator=torch.Generator().manual_seed(seed))
    return torch.nn.functional.normalize(rows, dim=1)


def _restart_with_threads(threads: int) -> None:
    """numpy's library reads its number of threads when it is loaded: starts the program again if need be."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    if any(os.environ.get(name) != str(threads) for name in names):
        environment = {**os.environ, **dict.fromkeys(names, str(threads))}
        os.execve(sys.executable, [sys.executable, *sys.argv], environment)
    torch.set_num_threads(threads)
