"""Display a plan in the terminal: progress bars, the graph of its stages, and estimates of their cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.tree import Tree

from covid_cmsf.clips import open_clips
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage import is_done
from covid_cmsf.cotrain.table import model_description
from covid_cmsf.devices import choose_device
from covid_cmsf.logs import console, format_duration
from covid_cmsf.models import create_model
from covid_cmsf.models.precision import autocast, resolve_precision
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.monitor import format_metrics, last_metrics
from covid_cmsf.training.run import set_threads
from covid_cmsf.views.modalities import get_modality

ShowStates = Callable[[list[Stage], dict[str, str]], None]


@contextmanager
def stage_bars() -> Iterator[ShowStates]:
    """Yield a function that updates one bar per running stage, from the metrics that it writes.

    Without a terminal nothing is displayed.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[metrics]}"))
    times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())
    with Progress(*columns, *times, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[Path, TaskID] = {}

        def show(stages: list[Stage], states: dict[str, str]) -> None:
            for stage in stages:
                if states[stage.id] == "running":
                    if stage.folder not in tasks:
                        total = stage.config.schedule.epochs if stage.config is not None else None
                        tasks[stage.folder] = bars.add_task(stage.id, total=total, metrics="")
                    metrics = last_metrics(stage.folder / "metrics.jsonl")
                    if metrics:
                        bars.update(tasks[stage.folder], completed=metrics["epoch"], metrics=format_metrics(metrics))
                elif stage.folder in tasks:
                    bars.remove_task(tasks.pop(stage.folder))

        yield show


def stage_tree(stages: Sequence[Stage]) -> Tree:
    """Return a tree with every stage below its `init`, and its guides beside it."""
    tree = Tree("plan")
    branches: dict[str, Tree] = {}
    for stage in stages:
        parent = branches.get(stage.spec.init or "", tree)
        guided = f"  ← guided by {', '.join(stage.spec.guides)}" if stage.spec.guides else ""
        branches[stage.name] = parent.add(f"{stage.name}: {model_description(stage)} on {stage.modality}{guided}")
    return tree


def print_costs(
    repetitions: Sequence[tuple[str | None, int | None]], graphs: Sequence[Sequence[Stage]], out: Console
) -> None:
    """Print the stages and their cost for every split and seed, then the sum over all."""
    left = 0.0
    for (split, seed), stages in zip(repetitions, graphs, strict=True):
        names = [f"{kind} {value}" for kind, value in (("split", split), ("seed", seed)) if value is not None]
        if names:
            out.print(", ".join(names))
        costs = stage_costs(stages)
        out.print(stage_tree(stages))
        out.print(cost_table(stages, costs))
        left += sum(costs[stage.name] or 0 for stage in stages if not is_done(stage))
    if len(graphs) > 1:
        counts = [(len({one[i] for one in repetitions}), kind) for i, kind in enumerate(("splits", "seeds"))]
        names = [f"{count} {kind}" for count, kind in counts if count > 1]
        out.print(f"{' and '.join(names)} together: {format_duration(left)} of training to do")


def cost_table(stages: Sequence[Stage], costs: dict[str, float | None]) -> Table:
    """Return a table of states and estimated training times; `costs` as from `stage_costs`."""
    table = Table("stage", "state", "epochs", "estimated training time")
    for stage in stages:
        epochs = "" if stage.config is None else str(stage.config.schedule.epochs)
        seconds = costs[stage.name]
        state = "done" if is_done(stage) else "to do"
        table.add_row(stage.name, state, epochs, "" if seconds is None else format_duration(seconds))
    left = sum(costs[stage.name] or 0 for stage in stages if not is_done(stage))
    table.add_section()
    table.add_row("to do", "", "", format_duration(left))
    return table


# Cost of a plan: the time of the networks per step, measured on random clips, times the number of steps. Decoding and
# augmentation, which run in workers at the same time, and evaluation are not counted.

TIMED_CLIPS = 2  # batch size of the measurement
WARM_UP_SECONDS = 2.0  # a first pass that takes longer is the measurement: warming up is a small part of it
Timing = tuple[float, float]  # seconds per clip: forward and backward, forward only


def stage_costs(stages: Sequence[Stage]) -> dict[str, float | None]:
    """Estimate the seconds of training per stage; None where nothing is trained."""
    sizes: dict[tuple[str, str, str], int] = {}
    costs: dict[str, float | None] = {}
    for stage in stages:
        config = stage.config
        if config is None:
            costs[stage.name] = None
            continue
        subset = (config.clips, config.split, config.subset)
        if subset not in sizes:
            sizes[subset] = len(open_clips(config.clips).select(config.split, config.subset))
        set_threads(stage.runtime)
        both, forward = time_clip(config.encoder, clip_shape(config), config.precision, config.runtime.device)
        networks = both + forward * (config.method.has_target + len(config.guides))
        batches = sizes[subset] * config.repeat // config.batch_size
        costs[stage.name] = config.schedule.epochs * batches * config.batch_size * networks
    return costs


def clip_shape(config: TrainConfig) -> tuple[int, ...]:
    """Return (T, H, W), or (H, W) of an image."""
    modality = get_modality(config.modality)
    length, size = config.views.view_shape(modality)
    return (size, size) if modality.is_image else (length, size, size)


@cache
def time_clip(encoder_name: str, shape: tuple[int, ...], precision: str, device_name: str) -> Timing:
    """Measure the seconds per clip of an encoder, once for all stages and modalities that have it.

    RGB and flow differ in the first layer only: three channels stand for both.
    """
    device = choose_device(device_name)
    precision = resolve_precision(precision, device)
    encoder = create_model(encoder_name).to(device)
    clip = torch.randn(TIMED_CLIPS, 3, *shape, device=device)
    times = (0.0, 0.0)
    for _ in range(2):
        start = time.monotonic()
        with autocast(precision, device):
            feature = encoder(clip)
        _synchronize(device)
        middle = time.monotonic()
        feature.float().sum().backward()
        _synchronize(device)
        times = (time.monotonic() - start, middle - start)
        if times[0] > WARM_UP_SECONDS:
            break
    return times[0] / TIMED_CLIPS, times[1] / TIMED_CLIPS


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
