"""The bank search and its loss, forward and backward: ours against the official formulation, time and extra memory.

    python tools/benchmark.py bank                  label-constrained, 128,000 x 512, and 8192 x 128 without labels
    python tools/benchmark.py bank --classes 10     the same with large classes

The official formulation is CMSF's steps 3 to 6: it copies the bank, computes the distances of targets and of online
embeddings to all rows, and masks other labels by index. `masked` is a plain improvement of it for orientation: one
distance matrix, in slices, with a boolean mask. All sides take turns in one run, round by round; the ratios are how
many times faster, or smaller, than the official formulation. Memory is the growth at the peak of three steps over what
the inputs take, each side in a fresh process.
"""

# B batch, M bank rows, D embedding, K neighbors

import gc
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import typer
from torch import Tensor

from covid_cmsf.methods.constraints import GuideConstraint, LabelConstraint, Query, Unconstrained
from covid_cmsf.methods.mean_shift import mean_shift_loss
from covid_cmsf.methods.memory_bank import MemoryBank
from covid_cmsf.methods.neighbors import Neighbors, nearest, neighbor_mean
from tools.benchmarks.measure import JsonFile, print_results, summarize_times, time_calls

OFFICIAL = "official"
MASKED_DISTANCE = 5.0  # more than any distance of unit vectors
NUM_CANDIDATES = 10  # of the guided search
SearchResult = tuple[Tensor, Tensor]  # rows (B, K) and the loss


@dataclass(frozen=True)
class BenchmarkCase:
    """What is searched, and where."""

    rows: int
    size: int
    batch: int
    classes: int
    k: int
    threads: int
    device: str


@dataclass(frozen=True)
class Inputs:
    """A full bank whose last rows are the batch's targets, as after the push; the online embeddings are leaves."""

    bank: MemoryBank
    targets: Tensor
    guide: Tensor
    online: Tensor
    labels: Tensor
    query: Query


Variant = Callable[[Inputs, int], SearchResult]


def command(
    rows: int = typer.Option(128_000, min=1, help="Rows of the bank, label-constrained search."),
    size: int = typer.Option(512, min=1, help="Size of its embeddings."),
    batch: int = typer.Option(256, min=1, help="Queries a step."),
    classes: int = typer.Option(1000, min=1, help="Labels, drawn evenly; each needs k rows."),
    k: int = typer.Option(10, min=1, help="Neighbors."),
    repeats: int = typer.Option(5, min=1, help="Measured rounds; the median counts."),
    threads: int = typer.Option(os.cpu_count() or 1, min=1, help="Threads; all cores when left out."),
    device: str = typer.Option("cpu", help="cpu or cuda."),
    json_file: JsonFile = None,
) -> None:
    """Bank search, loss and backward: ours against CMSF's and MSF's official formulation."""
    if rows % batch:
        raise typer.BadParameter(f"{rows} rows are no multiple of a batch of {batch}, which the official bank needs")
    labeled = BenchmarkCase(rows, size, batch, classes, k, threads, device)
    video = BenchmarkCase(8192, 128, 128, 101, 5, threads, device)
    results: dict[str, Any] = {"threads": threads, "repeats": repeats, "device": device}
    for name, case in (("label", labeled), ("free", video)):
        results[f"{name}_setting"] = "{rows} x {size}, batch {batch}, {classes} classes, k {k}".format(**vars(case))
        found = _measure_times(case, VARIANTS[name], repeats) | _measure_memory(case, name)
        results |= {f"{name}_{key}": value for key, value in found.items()}
    print_results(results, json_file=json_file)


def official_label(x: Inputs, k: int) -> SearchResult:
    """CMSF: other labels are set far away (cmsf.md 1.2, steps 3 to 6)."""
    return _official(x, k, labeled=True)


def official_free(x: Inputs, k: int) -> SearchResult:
    """MSF: all rows."""
    return _official(x, k, labeled=False)


def _official(x: Inputs, k: int, *, labeled: bool) -> SearchResult:
    bank = x.bank.targets.clone().detach()
    target_distances = 2 - 2 * torch.einsum("bd,md->bm", x.targets, bank)
    online_distances = 2 - 2 * torch.einsum("bd,md->bm", x.online, bank)
    if labeled:
        own = x.labels.unsqueeze(1).expand(-1, len(bank))  # (B, M)
        theirs = x.bank.ids("labels").unsqueeze(0).expand(len(own), -1)
        target_distances[torch.where(own != theirs)] = MASKED_DISTANCE
    rows = target_distances.topk(k, dim=1, largest=False).indices
    return rows, online_distances.gather(1, rows).mean(1).mean()


def masked_label(x: Inputs, k: int) -> SearchResult:
    """Our search of all rows under a boolean mask, our loss."""
    other = x.bank.ids("labels")[None, :] != x.labels[:, None]
    return _search_and_loss(x, nearest(x.targets, x.bank.targets, k, forbidden=other))


def our_label(x: Inputs, k: int) -> SearchResult:
    """Our search of the rows with the same label, our loss."""
    return _search_and_loss(x, LabelConstraint().nearest(x.query, x.bank, k))


def our_free(x: Inputs, k: int) -> SearchResult:
    """Our search of all rows, our loss."""
    return _search_and_loss(x, Unconstrained().nearest(x.query, x.bank, k))


def our_guided(x: Inputs, k: int) -> SearchResult:
    """Two searches: the guide's candidates, and the nearest of them. Its result is another one than MSF's."""
    return _search_and_loss(x, GuideConstraint("guide", n=NUM_CANDIDATES).nearest(x.query, x.bank, k))


def _search_and_loss(x: Inputs, found: Neighbors) -> SearchResult:
    return found.indices, mean_shift_loss(x.online, *neighbor_mean(x.bank.targets, found)).mean()


VARIANTS: dict[str, dict[str, Variant]] = {
    "label": {OFFICIAL: official_label, "masked": masked_label, "ours": our_label},
    "free": {OFFICIAL: official_free, "ours": our_free, "guided": our_guided},
}
DIFFERENT_RESULT = {our_guided}


def make_inputs(case: BenchmarkCase) -> Inputs:
    """The same every time. The bank is filled piece by piece, so that nothing large is left over or was ever alive."""
    generator = torch.Generator().manual_seed(0)

    def random_unit_vectors(num: int) -> Tensor:
        return F.normalize(torch.randn(num, case.size, generator=generator), dim=1).to(case.device)

    bank = MemoryBank(case.rows, {"target": case.size, "guide": case.size}).to(case.device)
    labels = torch.randint(case.classes, (case.rows,), generator=generator).to(case.device)
    smallest = int(labels.bincount(minlength=case.classes).min())
    if smallest < case.k:
        raise typer.BadParameter(f"a class has {smallest} rows; every class needs k = {case.k}")
    for numbers in torch.arange(case.rows, device=case.device).split(case.batch):
        columns = {"target": random_unit_vectors(len(numbers)), "guide": random_unit_vectors(len(numbers))}
        own = bank.push_(columns, videos=numbers, sources=numbers, labels=labels[numbers])
    online = random_unit_vectors(len(own)).requires_grad_()
    query = Query.from_bank(bank, own)
    return Inputs(bank, columns["target"], columns["guide"], online, labels[own], query)


def _step(variant: Variant, x: Inputs, k: int) -> SearchResult:
    """Search, loss and backward; the gradient is in `x.online.grad`."""
    x.online.grad = None
    rows, loss = variant(x, k)
    loss.backward()
    if loss.is_cuda:
        torch.cuda.synchronize()
    return rows, loss.detach()


def _measure_times(case: BenchmarkCase, variants: dict[str, Variant], repeats: int) -> dict[str, Any]:
    """Seconds of every side and how many times faster than the official one it is, after a check of the results."""
    torch.set_num_threads(case.threads)
    x = make_inputs(case)
    results: dict[str, Any] = _check_agreement(variants, x, case.k)
    times: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(repeats):
        for name, variant in variants.items():
            times[name] += time_calls(partial(_step, variant, x, case.k), repeats=1)
    for name, own in times.items():
        results |= {f"{name}_{key}": value for key, value in summarize_times(own).items()}
        if name != OFFICIAL:  # round by round: both sides of a ratio saw the same load
            ratios = [theirs / ours for theirs, ours in zip(times[OFFICIAL], own, strict=True)]
            results |= {f"{name}_ratio": statistics.median(ratios), f"{name}_worst_ratio": min(ratios)}
    return results


def _check_agreement(variants: dict[str, Variant], x: Inputs, k: int) -> dict[str, Any]:
    """Stops unless the loss, its gradient and all but a few nearly equal neighbors are the official ones."""
    results: dict[str, Any] = {}
    rows, loss = _step(variants[OFFICIAL], x, k)
    gradient = x.online.grad
    assert gradient is not None
    for name, variant in variants.items():
        own_indices, own_loss = _step(variant, x, k)
        if variant in DIFFERENT_RESULT or name == OFFICIAL:
            continue
        assert x.online.grad is not None
        same = (own_indices == rows).float().mean().item()
        close = torch.allclose(own_loss, loss, atol=1e-6) and torch.allclose(x.online.grad, gradient, atol=1e-7)
        if same < 0.999 or (same == 1 and not close):
            raise RuntimeError(f"{name}: {same:.2%} of the neighbors are the official ones, loss {own_loss} not {loss}")
        results |= {f"{name}_same_neighbors": same, f"{name}_loss_difference": abs(own_loss - loss).item()}
    return results


def _measure_memory(case: BenchmarkCase, table: str) -> dict[str, Any]:
    """Megabytes above the inputs at the peak of every side, and how many times less than the official one it is."""
    results: dict[str, Any] = {}
    for name in VARIANTS[table]:
        command_line = [sys.executable, "-m", "tools.benchmarks.bank", table, name, json.dumps(asdict(case))]
        process = subprocess.run(command_line, cwd=Path(__file__).parents[2], check=True, stdout=subprocess.PIPE)
        results[f"{name}_extra_MB"] = float(process.stdout)
        if name != OFFICIAL:
            results[f"{name}_memory_ratio"] = results[f"{OFFICIAL}_extra_MB"] / results[f"{name}_extra_MB"]
    return results


def _extra_megabytes(case: BenchmarkCase, variant: Variant) -> float:
    """How far the peak grows above what there is once inputs exist and all code has run once on tiny inputs."""
    torch.set_num_threads(case.threads)
    tiny = make_inputs(replace(case, rows=64 * case.k, size=8, batch=8, classes=2))
    _step(variant, tiny, case.k)
    x = make_inputs(case)
    del tiny
    gc.collect()
    if case.device != "cpu":
        torch.cuda.reset_peak_memory_stats()
    before = _current_and_peak_bytes(case.device)[0]
    for _ in range(3):
        _step(variant, x, case.k)
    return (_current_and_peak_bytes(case.device)[1] - before) / 1e6


def _current_and_peak_bytes(device: str) -> tuple[int, int]:
    """Bytes in use and at the peak: of the process (Linux), or of PyTorch's allocator on a GPU."""
    if device != "cpu":
        return torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()
    # Not getrusage: its peak is inherited from the process that started this one.
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    now, peak = (re.search(rf"{key}:\s+(\d+) kB", status) for key in ("VmRSS", "VmHWM"))
    assert now and peak
    return 1024 * int(now[1]), 1024 * int(peak[1])


if __name__ == "__main__":  # a fresh process for one side
    typer.echo(_extra_megabytes(BenchmarkCase(**json.loads(sys.argv[3])), VARIANTS[sys.argv[1]][sys.argv[2]]))
