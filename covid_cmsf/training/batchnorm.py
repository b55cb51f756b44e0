"""Batch norm statistics: over all processes, one process, groups of a batch, or frozen."""

# b samples of this process, B of all processes

import torch
from torch import Tensor, nn

from covid_cmsf.models.networks import Network
from covid_cmsf.training.distributed import DistributedContext


def use_sync_batchnorm(network: Network) -> Network:
    """Convert batch norm to statistics over all processes. PyTorch supports that on GPUs only."""
    converted: Network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    return converted


def train_mode_(network: nn.Module, *, frozen: bool) -> None:
    """Set train mode; with `frozen`, batch norm uses its running statistics and does not update them."""
    network.train()
    if frozen:
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


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
    order = torch.randperm(total, generator=generator).to(view.device)
    own = order[dist.local_slice(total)]
    shuffled = dist.gather(forward_in_groups(target, dist.gather(view)[own], groups))
    return shuffled[torch.argsort(order)]
