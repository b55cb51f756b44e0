"""Timing and printing that all benchmarks share."""

import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import typer


def time_calls(work: Callable[[], object], *, repeats: int) -> list[float]:
    """Wall-clock seconds of each of `repeats` calls; call it once yourself before if the first is special."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return times


def summarize_times(times: list[float]) -> dict[str, float]:
    """Median, best and worst of some times, in seconds."""
    return {"median_s": statistics.median(times), "best_s": min(times), "worst_s": max(times)}


def print_results(results: dict[str, Any], *, as_json: bool) -> None:
    """Prints a flat mapping of results as lines for people or as one JSON object."""
    if as_json:
        typer.echo(json.dumps(results))
        return
    width = max(map(len, results))
    for key, value in results.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        typer.echo(f"{key:<{width}}  {text}")
