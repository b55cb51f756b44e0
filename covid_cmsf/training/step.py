"""One training step, in the order of the paper: targets, push, search, loss; then optimizer step and EMA.

forward_backward    target and guide embeddings of all processes -> push into the bank -> online embeddings
                    -> the method's loss (the neighbor search is in there) -> backward
update              learning rate -> optimizer step -> EMA of the target network
"""

# b samples of this process, B of all processes, D embedding

import math
from dataclasses import dataclass, replace

import torch

from covid_cmsf.methods.base import EmbeddedBatch
from covid_cmsf.methods.instance_memory import PREVIOUS_COLUMN
from covid_cmsf.models.networks import ema_update_
from covid_cmsf.models.precision import autocast
from covid_cmsf.training.batchnorm import forward_in_groups, gather_targets
from covid_cmsf.training.build import TrainComponents
from covid_cmsf.training.config import BatchNormConfig
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.guides import sample_views
from covid_cmsf.views.batch import Batch


@dataclass(frozen=True)
class StepConfig:
    """The options of a step."""

    modality: str
    precision: str
    batch_norm: BatchNormConfig
    bank_warmup: int  # entries in the bank before the first loss
    accumulate: int = 1  # batches per optimizer step
    clip_norm: float | None = None


@dataclass(frozen=True)
class StepResult:
    """The result of a batch. `loss` is the mean over all processes; None while the bank is filling up."""

    loss: float | None
    embedded: EmbeddedBatch | None
    generator_state: torch.Tensor | None = None  # before the loss, if the loss is not finite

    @property
    def finite(self) -> bool:
        """Whether the run may go on."""
        return self.loss is None or math.isfinite(self.loss)


def forward_backward(
    components: TrainComponents, batch: Batch, config: StepConfig, dist: DistributedContext
) -> StepResult:
    """Compute the gradients of one batch and push its targets. Without gradients if the loss is not finite."""
    batch = batch.to(dist.device)
    with torch.no_grad(), autocast(config.precision, dist.device):
        gathered = _embed_targets(components, batch, config, dist)
    method, banks = components.method, components.banks
    own = dist.local_slice(len(gathered.videos))
    if banks is not None and method.push == "before":
        gathered = _push(components, gathered)
    filling = banks is not None and len(banks.main) < config.bank_warmup
    loss, embedded = None, None
    if not filling:
        with autocast(config.precision, dist.device):
            online = forward_in_groups(components.online, batch.online[config.modality], config.batch_norm.groups)
        embedded = replace(gathered.select(own), online=online)
        generator_state = components.generator.get_state()
        losses = method.losses(embedded, banks, components.generator)
        # DDP averages gradients over processes: scale so that the result is the mean over all valid samples.
        # The only place of a step that waits for a GPU, but for methods that need a number of labels.
        count, total = dist.all_reduce_sum(losses.valid.sum(), losses.values.detach().sum())
        scale = dist.world_size / max(count, 1) / config.accumulate
        loss = total / max(count, 1)
        if not math.isfinite(loss):
            return StepResult(loss, embedded, generator_state)
        components.scaler.scale(losses.values.sum() * scale).backward()
    if banks is not None and method.push == "after":
        bank_indices = _push(components, gathered).bank_indices
        if embedded is not None and bank_indices is not None:
            embedded = replace(embedded, bank_indices=bank_indices.select(own))
    return StepResult(loss, embedded)


def update(components: TrainComponents, config: StepConfig, *, lr: float, momentum: float) -> None:
    """Step the optimizer and the EMA target."""
    for group in components.optimizer.param_groups:
        group["lr"] = lr * group["factor"]
    if config.clip_norm is not None:
        components.scaler.unscale_(components.optimizer)
        torch.nn.utils.clip_grad_norm_(components.network.parameters(), config.clip_norm)
    components.scaler.step(components.optimizer)
    components.scaler.update()
    components.optimizer.zero_grad(set_to_none=True)
    if components.target is not None:
        ema_update_(components.target, components.network, momentum)


def _embed_targets(
    components: TrainComponents, batch: Batch, config: StepConfig, dist: DistributedContext
) -> EmbeddedBatch:
    """Embed targets and guides of all processes' samples. `online` is filled in later, for this process's own."""
    gather = dist.gather
    videos = gather(batch.videos)
    target = None
    if components.target is not None:
        target = gather_targets(
            components.target,
            batch.target[config.modality],
            dist=dist,
            groups=config.batch_norm.groups,
            shuffle=config.batch_norm.shuffle,
            generator=components.generator,
        )
    guides = {}
    labels = components.data.labels[videos]
    if components.memory is not None and target is not None:
        if components.method.memory_kind == "embeddings":
            guides[PREVIOUS_COLUMN] = components.memory.lookup(videos, target)
        else:
            labels = components.memory.clusters[videos]
    for guide in components.guides:
        if guide.column in components.cached:
            guides[guide.column] = sample_views(components.cached[guide.column], videos, components.generator)
        else:
            guides[guide.column] = gather(guide(batch.target[guide.modality]))
    return EmbeddedBatch(
        online=torch.empty(0),
        sources=gather(batch.sources),
        labels=labels,
        true_labels=gather(batch.labels),
        videos=videos,
        target=target,
        guides=guides,
    )


def _push(components: TrainComponents, gathered: EmbeddedBatch) -> EmbeddedBatch:
    """Push the targets into the banks; return the batch with their indices."""
    assert components.banks is not None and gathered.target is not None and gathered.guides is not None
    if components.memory is not None:
        components.memory.update_(gathered.videos, gathered.target)
    bank_indices = components.banks.push_(
        {"target": gathered.target, **gathered.guides},
        videos=gathered.videos,
        sources=gathered.sources,
        labels=gathered.labels,
        true_labels=gathered.true_labels,
    )
    return replace(gathered, bank_indices=bank_indices)
