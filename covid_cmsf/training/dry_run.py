"""Builds everything, runs two steps, and tells what the run would be. Leaves nothing behind."""

import resource
import time
from dataclasses import dataclass, replace

import torch
from torch import nn

from covid_cmsf.training.data import make_loader
from covid_cmsf.training.loop import how_of, rates, whole_steps
from covid_cmsf.training.parts import Parts, build_parts
from covid_cmsf.training.processes import processes
from covid_cmsf.training.progress import Progress
from covid_cmsf.training.run import set_threads
from covid_cmsf.training.settings import TrainSettings
from covid_cmsf.training.step import forward_backward, update

STEPS = 2


@dataclass(frozen=True)
class Plan:
    """What `covid-cmsf train --dry-run` prints, name by name."""

    facts: dict[str, str]


def dry_run(settings: TrainSettings) -> Plan:
    """Two steps of the run (a guide's cache is not filled: the guide is asked itself), and what follows from them."""
    live = tuple(guide.model_copy(update={"cache": "none", "center": False}) for guide in settings.guides)
    trial = settings.model_copy(update={"guides": live})
    with processes(settings.runtime.device) as group:
        set_threads(settings.runtime)
        parts = build_parts(trial, group)
        loader = make_loader(parts.data, trial, group)
        how = replace(how_of(trial), start_rows=0)
        per_epoch = whole_steps(loader, how)
        batches = loader.epoch(0)
        marks, losses = [time.monotonic()], []
        for number, batch in zip(range(STEPS), batches, strict=False):
            outcome = forward_backward(parts, batch, how, group)
            rate, momentum = rates(trial, Progress(batch=number), per_epoch)
            update(parts, how, rate=rate, momentum=momentum)
            losses.append(outcome.loss)
            marks.append(time.monotonic())
        batches.close()
        seconds = marks[-1] - marks[-2]  # the first step also starts workers and warms up
        steps = settings.schedule.epochs * per_epoch
        return Plan(
            {
                "run": parts.card.trained,
                "start": parts.words,
                **{f"guide {guide.column}": guide.words for guide in parts.guides},
                "videos": f"{len(parts.data.views):,} ({settings.part} of split {settings.split})",
                "parameters": _parameters(parts),
                "bank": _bank(parts),
                "device": f"{group.device}, {group.count} process{'es' if group.count > 1 else ''}",
                "peak memory": _memory(group.device),
                "losses of two steps": ", ".join("none" if loss is None else f"{loss:.4f}" for loss in losses),
                "steps": f"{steps:,} ({settings.schedule.epochs} epochs of {per_epoch})",
                "a step": f"{seconds:.2f} s",
                "all": f"about {_duration(steps * seconds)}, from one step: a rough estimate",
            }
        )


def _parameters(parts: Parts) -> str:
    network = parts.network
    named = {"encoder": network.encoder, "projector": network.projector, "predictor": network.predictor}
    counts = {name: _count(module) for name, module in named.items() if module is not None}
    return f"{sum(counts.values()):,} (" + ", ".join(f"{name} {count:,}" for name, count in counts.items()) + ")"


def _count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _bank(parts: Parts) -> str:
    if parts.banks is None:
        return "none"
    size = sum(buffer.numel() * buffer.element_size() for buffer in parts.banks.buffers())
    columns = ", ".join(parts.banks.everyone.columns)
    return f"{parts.banks.everyone.num_rows:,} rows of {columns}; {size / 1e6:.1f} MB"


def _memory(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 1e9:.2f} GB on the GPU"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.2f} GB, without workers"


def _duration(seconds: float) -> str:
    minutes = seconds / 60
    if minutes < 1:
        return f"{seconds:.0f} s"
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
