"""Display a plan in the terminal: progress bars, the graph of its stages, and estimates of their cost."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
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
from covid_cmsf.models.precision import autocast
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
                if states[stage.name] == "running":
                    if stage.folder not in tasks:
                        total = stage.config.schedule.epochs if stage.config is not None else None
                        tasks[stage.folder] = bars.add_task(stage.name, total=total, metrics="")
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

TIMED_CLIPS = 4  # batch size of the measurement
Timing = tuple[float, float]  # seconds per clip: forward and backward, forward only


def stage_costs(stages: Sequence[Stage]) -> dict[str, float | None]:
    """Estimate the seconds of training per stage; None where nothing is trained."""
    timings: dict[tuple[object, ...], Timing] = {}
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
        key = (config.encoder, config.modality, config.views, config.precision)
        if key not in timings:
            set_threads(stage.runtime)
            timings[key] = time_clip(config)
        both, forward = timings[key]
        networks = both + forward * (config.method.has_target + len(config.guides))
        batches = sizes[subset] * config.repeat // config.batch_size
        costs[stage.name] = config.schedule.epochs * batches * config.batch_size * networks
    return costs


def time_clip(config: TrainConfig) -> Timing:
    """Measure the seconds per clip of the encoder; the first of two passes is a warm-up."""
    modality = get_modality(config.modality, flow_style=config.views.flow_style)
    device = choose_device(config.runtime.device)
    encoder = create_model(config.encoder, in_channels=modality.num_channels).to(device)
    size = config.views.frame_size if modality.single_frame else config.views.size
    shape = (size, size) if modality.single_frame else (config.views.length, size, size)
    clip = torch.randn(TIMED_CLIPS, modality.num_channels, *shape, device=device)
    times = (0.0, 0.0)
    for _ in range(2):
        start = time.monotonic()
        with autocast(config.precision, device):
            feature = encoder(clip)
        _synchronize(device)
        middle = time.monotonic()
        feature.float().sum().backward()
        _synchronize(device)
        times = (time.monotonic() - start, middle - start)
    return times[0] / TIMED_CLIPS, times[1] / TIMED_CLIPS


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
