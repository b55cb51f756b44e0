"""One step of training, in the order of the paper: targets, push, search, loss; then step and EMA."""

# b examples of this process, B of all, D embedding

import math
from dataclasses import dataclass, replace

import torch

from covid_cmsf.methods.method import Embedded
from covid_cmsf.models.speed import autocast
from covid_cmsf.training.batch_norm import all_targets, in_groups
from covid_cmsf.training.guide_cache import pick
from covid_cmsf.training.networks import ema_update_
from covid_cmsf.training.parts import PREVIOUS, Parts
from covid_cmsf.training.processes import Processes
from covid_cmsf.training.settings import BatchNormSettings
from covid_cmsf.views.batch import Batch


@dataclass(frozen=True)
class How:
    """How a step is computed: what of the settings it needs."""

    modality: str
    precision: str
    batch_norm: BatchNormSettings
    start_rows: int
    accumulate: int = 1
    clip_norm: float | None = None


@dataclass(frozen=True)
class Outcome:
    """What came of a batch. `loss` is the mean over all processes; None while the bank is being filled."""

    loss: float | None
    embedded: Embedded | None
    draws: torch.Tensor | None = None  # the generator's state before the loss, when that is not finite

    @property
    def finite(self) -> bool:
        """False when the run must stop."""
        return self.loss is None or math.isfinite(self.loss)


def forward_backward(parts: Parts, batch: Batch, how: How, processes: Processes) -> Outcome:
    """Gradients of one batch; the bank has it afterwards. A loss that isn't finite leaves all as it was before it."""
    batch = batch.to(processes.device)
    with torch.no_grad(), autocast(how.precision, processes.device):
        everyone = _embed_targets(parts, batch, how, processes)
    method, banks = parts.method, parts.banks
    own = processes.own(len(everyone.videos))
    if banks is not None and method.push == "before":
        everyone = _push(parts, everyone)
    filling = banks is not None and len(banks.everyone) < how.start_rows
    loss, embedded = None, None
    if not filling:
        with autocast(how.precision, processes.device):
            online = in_groups(parts.online, batch.online[how.modality], how.batch_norm.groups)
        embedded = replace(everyone.select(own), online=online)
        draws = parts.generator.get_state()
        losses = method.losses(embedded, banks, parts.generator)
        # Several processes average their gradients: weigh by examples, so that they get the mean over all of them.
        (count,) = processes.total(losses.counted.sum())
        scale = processes.count / max(count, 1) / how.accumulate
        loss = processes.total(losses.values.detach().sum())[0] / max(count, 1)
        if not math.isfinite(loss):
            return Outcome(loss, embedded, draws)
        parts.scaler.scale(losses.values.sum() * scale).backward()
    if banks is not None and method.push == "after":
        rows = _push(parts, everyone).rows
        embedded = None if embedded is None or rows is None else replace(embedded, rows=rows.select(own))
    return Outcome(loss, embedded)


def update(parts: Parts, how: How, *, rate: float, momentum: float) -> float | None:
    """The optimizer's step and the target's; returns the gradient's norm where it is clipped."""
    for group in parts.optimizer.param_groups:
        group["lr"] = rate * group["factor"]
    norm = None
    if how.clip_norm is not None:
        parts.scaler.unscale_(parts.optimizer)
        norm = float(torch.nn.utils.clip_grad_norm_(parts.network.parameters(), how.clip_norm))
    parts.scaler.step(parts.optimizer)
    parts.scaler.update()
    parts.optimizer.zero_grad(set_to_none=True)
    if parts.target is not None:
        ema_update_(parts.target, parts.network, momentum)
    return norm


def _embed_targets(parts: Parts, batch: Batch, how: How, processes: Processes) -> Embedded:
    """Targets and guides of all processes' examples. `online` is filled in later, for the own ones."""
    gather = processes.gather
    videos = gather(batch.videos)
    target = None
    if parts.target is not None:
        target = all_targets(
            parts.target,
            batch.target[how.modality],
            processes=processes,
            groups=how.batch_norm.groups,
            shuffle=how.batch_norm.shuffle,
            generator=parts.generator,
        )
    guides = {}
    labels = parts.data.labels[videos]
    if parts.memory is not None and target is not None:
        if parts.method.remembers == "embeddings":
            guides[PREVIOUS] = parts.memory.recall(videos, target)
        else:
            labels = parts.memory.clusters[videos]
    for guide in parts.guides:
        if guide.column in parts.cached:
            guides[guide.column] = pick(parts.cached[guide.column], videos, parts.generator)
        else:
            guides[guide.column] = gather(guide(batch.target[guide.modality]))
    return Embedded(
        online=torch.empty(0),
        sources=gather(batch.sources),
        labels=labels,
        true_labels=gather(batch.labels),
        videos=videos,
        target=target,
        guides=guides,
    )


def _push(parts: Parts, everyone: Embedded) -> Embedded:
    assert parts.banks is not None and everyone.target is not None and everyone.guides is not None
    if parts.memory is not None:
        parts.memory.remember_(everyone.videos, everyone.target)
    rows = parts.banks.push_(
        {"target": everyone.target, **everyone.guides},
        videos=everyone.videos,
        sources=everyone.sources,
        labels=everyone.labels,
        true_labels=everyone.true_labels,
    )
    return replace(everyone, rows=rows)
