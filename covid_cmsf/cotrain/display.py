"""Progress of a plan on the screen: a bar for each stage that runs, from the files that it writes."""

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
from covid_cmsf.logs import console
from covid_cmsf.models import create_encoder
from covid_cmsf.models.precision import autocast
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.method_config import TargetMethodConfig
from covid_cmsf.training.monitor import format_metrics, last_metrics
from covid_cmsf.training.run import set_threads
from covid_cmsf.views.modalities import get_modality

ShowStates = Callable[[list[Stage], dict[str, str]], None]


@contextmanager
def stage_bars() -> Iterator[ShowStates]:
    """Yields the function that brings the bars up to date; it shows nothing elsewhere than on a terminal."""
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


# A plan as a picture in text: which stage trains what, from which start, under which guide, at which cost.


def stage_tree(stages: Sequence[Stage]) -> Tree:
    """Each stage below the one it starts from; guides are named beside it."""
    tree = Tree("plan")
    branches: dict[str, Tree] = {}
    for stage in stages:
        parent = branches.get(stage.spec.init or "", tree)
        guided = f"  ← guided by {', '.join(stage.spec.guides)}" if stage.spec.guides else ""
        branches[stage.name] = parent.add(f"{stage.name}: {model_description(stage)} on {stage.modality}{guided}")
    return tree


def cost_table(stages: Sequence[Stage], costs: dict[str, float | None]) -> Table:
    """What is done, and what the rest may take; seconds by stage, None where nothing is trained."""
    table = Table("stage", "state", "epochs", "training, about")
    for stage in stages:
        epochs = "" if stage.config is None else str(stage.config.schedule.epochs)
        seconds = costs[stage.name]
        state = "done" if is_done(stage) else "to do"
        table.add_row(stage.name, state, epochs, "" if seconds is None else format_duration(seconds))
    left = sum(costs[stage.name] or 0 for stage in stages if not is_done(stage))
    table.add_section()
    table.add_row("to do", "", "", format_duration(left))
    return table


def format_duration(seconds: float) -> str:
    """In words."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


# What a plan may take: the networks' time of one step, measured on random clips, times the number of steps.
#
# Decoding and augmentation happen beside it, in workers, and are not counted; nor is the evaluation of a stage.

MEASURED = 4  # clips of the batch that is timed
Timing = tuple[float, float]  # seconds a clip: forward and backward, forward alone


def stage_costs(stages: Sequence[Stage]) -> dict[str, float | None]:
    """Seconds of training of each stage; None where nothing is trained."""
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
        networks = both + forward * (isinstance(config.method, TargetMethodConfig) + len(config.guides))
        batches = sizes[subset] * config.repeat // config.batch_size
        costs[stage.name] = config.schedule.epochs * batches * config.batch_size * networks
    return costs


def time_clip(config: TrainConfig) -> Timing:
    """One clip of a batch through the encoder; the second of two tries."""
    seen = get_modality(config.modality, flow_style=config.views.flow_style)
    device = choose_device(config.runtime.device)
    encoder = create_encoder(config.encoder, in_channels=seen.num_channels).to(device)
    size = config.views.frame_size if seen.single_frame else config.views.size
    shape = (size, size) if seen.single_frame else (config.views.length, size, size)
    clip = torch.randn(MEASURED, seen.num_channels, *shape, device=device)
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
    return times[0] / MEASURED, times[1] / MEASURED


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
