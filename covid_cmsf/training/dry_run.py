"""Dry run: build everything, train two steps, estimate the cost. Writes no files."""

import resource
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import torch
from torch import nn

from covid_cmsf.devices import explained_memory
from covid_cmsf.logs import format_bytes, format_duration
from covid_cmsf.models.named_networks import named_library
from covid_cmsf.models.profile import activation_bytes
from covid_cmsf.preflight import raise_problems
from covid_cmsf.training.build import TrainComponents, build_components
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.distributed import DistributedContext, distributed_context
from covid_cmsf.training.failures import memory_advice
from covid_cmsf.training.guides import OwnWindows, embed_own_windows
from covid_cmsf.training.loop import lr_and_momentum, make_step_config, usable_batches
from covid_cmsf.training.preflight import check_training
from covid_cmsf.training.run import set_threads, with_precision
from covid_cmsf.training.step import forward_backward, update
from covid_cmsf.training.train_state import TrainState
from covid_cmsf.views.modalities import get_modality

STEPS = 2


@dataclass(frozen=True)
class DryRunReport:
    """What `covid-cmsf train --dry-run` prints, by name, and the seconds of the fastest step after the first."""

    entries: dict[str, str]
    seconds_per_step: float


def dry_run(config: TrainConfig, *, num_steps: int = STEPS) -> DryRunReport:
    """Train some steps and estimate the run from them. Guide caches are not filled: guides run live.

    A network of another library does not: its own windows may be far larger than the views. It embeds one video.
    """
    live = tuple(
        guide
        if named_library(guide.weights) is not None
        else guide.model_copy(update={"cache": "none", "center": False})
        for guide in config.guides
    )
    trial = config.model_copy(update={"guides": live})
    with ExitStack() as stack:
        dist = stack.enter_context(distributed_context(config.runtime.device))
        set_threads(config.runtime)
        trial = with_precision(trial, dist)
        raise_problems(check_training(config))
        stack.enter_context(explained_memory(partial(memory_advice, trial, world_size=dist.world_size)))
        components = build_components(trial, dist)
        _try_cached_guides_(components, trial, dist)
        loader = make_loader(components.data, trial, dist)
        step_config = replace(make_step_config(trial, world_size=dist.world_size), bank_warmup=0)
        per_epoch = usable_batches(loader, step_config)
        batches = loader.epoch(0)
        marks, losses = [time.monotonic()], []
        for number, batch in zip(range(num_steps), batches, strict=False):
            result = forward_backward(components, batch, step_config, dist)
            lr, momentum = lr_and_momentum(trial, TrainState(batch=number), per_epoch)
            update(components, step_config, lr=lr, momentum=momentum)
            losses.append(result.loss)
            marks.append(time.monotonic())
        batches.close()
        loader.close()
        # The first step also starts workers and warms up; others may be disturbed by what else runs.
        durations = [after - before for before, after in pairwise(marks)]
        seconds = min(durations[1:] or durations)
        steps = config.schedule.epochs * per_epoch
        return DryRunReport(
            {
                "run": components.metadata.trained,
                "init": components.init_description,
                **{f"guide {guide.column}": guide.description for guide in components.guides},
                "videos": f"{len(components.data.views):,} ({config.subset} of split {config.split})",
                "parameters": _parameters(components),
                "bank": _bank(components),
                "device": f"{dist.device}, {dist.world_size} process{'es' if dist.world_size > 1 else ''}, "
                f"{trial.precision}",
                "peak memory": _memory(dist.device),
                "activations": _activations(trial),
                "losses of two steps": ", ".join("none" if loss is None else f"{loss:.4f}" for loss in losses),
                "steps": f"{steps:,} ({config.schedule.epochs} epochs of {per_epoch})",
                "time per step": f"{seconds:.2f} s",
                "total time": f"about {format_duration(steps * seconds)}, a rough estimate from one step",
            },
            seconds,
        )


def _try_cached_guides_(components: TrainComponents, config: TrainConfig, dist: DistributedContext) -> None:
    """Embed the first video with each guide that has a cache, and fill the cache with random directions."""
    data = components.data
    for guide, chosen in zip(components.guides, config.guides, strict=True):
        if chosen.cache == "none" or guide.transform is None:
            continue
        first = OwnWindows(data.clips, data.views.records[:1], guide.transform, num_windows=chosen.cached_views)
        embed_own_windows(guide, first, batch_size=1, workers=0, dist=dist)
        directions = torch.randn(1, len(data.views), guide.dim, generator=torch.Generator().manual_seed(0))
        components.cached[guide.column] = nn.functional.normalize(directions, dim=2).to(dist.device)


def _parameters(components: TrainComponents) -> str:
    network = components.network
    named = {"encoder": network.encoder, "projector": network.projector, "predictor": network.predictor}
    counts = {name: _count(module) for name, module in named.items() if module is not None}
    return f"{sum(counts.values()):,} (" + ", ".join(f"{name} {count:,}" for name, count in counts.items()) + ")"


def _count(module: nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


def _bank(components: TrainComponents) -> str:
    if components.banks is None:
        return "none"
    size = sum(buffer.numel() * buffer.element_size() for buffer in components.banks.buffers())
    columns = ", ".join(components.banks.main.columns)
    return f"{components.banks.main.size:,} entries of {columns}; {size / 1e6:.1f} MB"


def _activations(config: TrainConfig) -> str:
    """Describe what a step keeps per clip for the encoder's backward pass: memory that grows with the batch."""
    seen = get_modality(config.modality, flow_style=config.views.flow_style)
    frames, size = config.views.view_shape(seen)
    chosen = config.runtime.gradient_checkpointing
    kept = {
        on: activation_bytes(
            config.encoder,
            (frames, size, size),
            in_channels=seen.num_channels,
            precision="fp32" if config.precision == "fp32" else "bf16",
            gradient_checkpointing=on,
        ).peak
        for on in (True, False)
    }
    ours, other = format_bytes(kept[chosen]), format_bytes(kept[not chosen])
    return f"{ours} per clip {'with' if chosen else 'without'} runtime.gradient_checkpointing, {other} otherwise"


def _memory(device: torch.device) -> str:
    if device.type == "cuda":
        return f"{torch.cuda.max_memory_allocated(device) / 1e9:.2f} GB on the GPU"
    return f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9:.2f} GB, without workers"
