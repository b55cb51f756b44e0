"""One training step of S3D: forward, backward and Adam, ours against the plain contiguous layout.

    python tools/benchmark.py step                  2 clips of 32x128x128, all cores
    python tools/benchmark.py step --compile        with torch.compile as well (its first call takes minutes)

The plain side is torchvision's S3D (the same layers and numbers) with PyTorch's defaults. All sides take turns in
one run, round by round, so that a busy machine hits them alike; compare the ratios, not the seconds.
"""

import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import typer
from torch import Tensor, nn
from torchvision.models.video import s3d as torchvision_s3d

from covid_cmsf.models import create_model
from covid_cmsf.models.encoder import parse_size
from covid_cmsf.models.precision import autocast, compile_
from tools.benchmarks.measure import JsonFile, print_results, summarize_times, time_calls

Step = Callable[[], object]


def command(
    batch: int = typer.Option(2, help="Clips a step."),
    size: str = typer.Option("32x128x128", help="Clip as TxHxW."),
    threads: int = typer.Option(os.cpu_count() or 1, help="Threads; all cores when left out."),
    repeats: int = typer.Option(5, help="Measured rounds; the median counts."),
    compile: bool = typer.Option(False, "--compile", help="Measure torch.compile as well."),
    bf16: bool = typer.Option(False, "--bf16", help="Measure bf16 autocast as well (CPUs without it are slow)."),
    json_file: JsonFile = None,
) -> None:
    """S3D training step (forward, backward, Adam): plain layout against ours."""
    torch.set_num_threads(threads)
    clip = torch.randn(batch, 3, *parse_size(size))
    variants: dict[str, Step] = {
        "plain": _make_step(torchvision_s3d().features, clip, fused=False),
        "channels_last": _make_step(create_model("s3d"), clip, fused=False),
        "channels_last_fused_adam": _make_step(create_model("s3d"), clip, fused=True),
    }
    if bf16:
        variants["with_bf16"] = _make_step(create_model("s3d"), clip, fused=True, precision="bf16")
    if compile:
        variants["with_compile"] = _make_step(compile_(create_model("s3d")), clip, fused=True)
    results: dict[str, Any] = {"batch": batch, "size": size, "threads": threads, "repeats": repeats}
    print_results(results | _compare(variants, repeats), json_file=json_file)


def _make_step(network: nn.Module, clip: Tensor, *, fused: bool, precision: str = "fp32") -> Step:
    """A function that does one training step; the loss pulls the pooled features to zero."""
    network.train()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        optimizer.zero_grad()
        with autocast(precision, "cpu"):
            feature = network(clip)
        feature.float().square().mean().backward()
        optimizer.step()

    return step


def _compare(variants: dict[str, Step], repeats: int) -> dict[str, Any]:
    """Times of all sides, one round after the other, and how many times faster than the first each is."""
    results: dict[str, Any] = {}
    for name, step in variants.items():
        start = time.perf_counter()
        step()
        results[f"{name}_first_call_s"] = time.perf_counter() - start
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, step in variants.items():
            times[name] += time_calls(step, repeats=1)
    plain = times["plain"]
    for name, variant_times in times.items():
        results |= {f"{name}_{key}": value for key, value in summarize_times(variant_times).items()}
        # Round by round: both sides of a ratio saw the same load.
        results[f"{name}_ratio"] = statistics.median(a / b for a, b in zip(plain, variant_times, strict=True))
        results[f"{name}_best_ratio"] = min(plain) / min(variant_times)
    return results
