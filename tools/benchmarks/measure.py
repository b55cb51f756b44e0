"""Timing, printing and keeping results, shared by all benchmarks."""

import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

from covid_cmsf.files import write_text_atomic

JsonFile = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", help="Also write the results with date, commit and CPU to this file."),
]


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


def print_results(results: dict[str, Any], *, json_file: Path | None = None) -> None:
    """Print a flat mapping of results, one per line; with `json_file`, also keep them with date, commit and CPU."""
    width = max(map(len, results))
    for key, value in results.items():
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        typer.echo(f"{key:<{width}}  {text}")
    if json_file is not None:
        write_text_atomic(json_file, json.dumps(describe_run(results), indent=2) + "\n")


def describe_run(results: dict[str, Any]) -> dict[str, Any]:
    """Return results with what is needed to compare them later: benchmark, date, commit, CPU and command."""
    return {
        "benchmark": sys.argv[1] if len(sys.argv) > 1 else "",
        "date": datetime.now(timezone.utc).date().isoformat(),
        "commit": _commit(),
        "cpu": f"{cpu_name()}, {os.cpu_count()} cores",
        "command": shlex.join(["python", "tools/benchmark.py", *sys.argv[1:]]),
        "results": results,
    }


def cpu_name() -> str:
    """Return the model name of the CPU; where /proc is missing, what Python knows."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str:
    """Return the commit of this checkout, `-dirty` with changes; empty without git."""
    command = ["git", "describe", "--always", "--dirty"]
    found = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return found.stdout.strip()
