"""Batch norm statistics: over all processes, one process, groups of a batch, or frozen."""

# b samples of this process, B of all processes

import torch
from torch import Tensor, nn

from covid_cmsf.devices import send
from covid_cmsf.models.networks import Network
from covid_cmsf.training.config import BatchNormConfig
from covid_cmsf.training.distributed import DistributedContext

SHUFFLE_GROUPS = 2  # of a batch that one process shuffles: the two GPUs of Han et al.


def resolve_groups(config: BatchNormConfig, *, world_size: int) -> int:
    """Return the groups of a batch per process. In one process a shuffle needs two, or it would change nothing."""
    if config.shuffle and config.groups == 1 and world_size == 1 and config.mode != "frozen":
        return SHUFFLE_GROUPS
    return config.groups


def use_sync_batchnorm(network: Network) -> Network:
    """Convert batch norm to statistics over all processes. PyTorch supports that on GPUs only."""
    converted: Network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    return converted


def train_mode_(network: Network, *, frozen: bool) -> None:
    """Set train mode; with `frozen`, batch norm uses its running statistics and does not update them.

    That is the encoder's batch norm, and that of heads which have seen data. New layers of a head have the statistics
    of no data at all, mean 0 and variance 1, and would never get others.
    """
    network.train()
    if not frozen:
        return
    encoder = set(network.encoder.modules())
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (module in encoder or _has_seen_data(module)):
            module.eval()


def _has_seen_data(module: nn.modules.batchnorm._BatchNorm) -> bool:
    return module.num_batches_tracked is not None and int(module.num_batches_tracked) > 0


def forward_in_groups(network: nn.Module, view: Tensor, groups: int) -> Tensor:
    """Return the outputs of a batch in `groups` chunks, each with batch statistics of its own."""
    if groups == 1:
        output: Tensor = network(view)
        return output
    return torch.cat([network(chunk) for chunk in view.chunk(groups)])


def gather_targets(
    target: nn.Module,
    view: Tensor,
    *,
    dist: DistributedContext,
    groups: int = 1,
    shuffle: bool = False,
    generator: torch.Generator,
) -> Tensor:
    """Return the target embeddings (B, D) of all processes' views (b, ...).

    With `shuffle` (MoCo's shuffled batch norm) samples are permuted over processes and groups before the forward pass,
    so that a target does not share its batch statistics with its online view, and permuted back afterward.
    """
    if not shuffle:
        return dist.gather(forward_in_groups(target, view, groups))
    total = len(view) * dist.world_size
    order = torch.randperm(total, generator=generator)
    shuffled = dist.gather(forward_in_groups(target, dist.exchange(view, order), groups))
    return shuffled[send(torch.argsort(order), view.device)]
