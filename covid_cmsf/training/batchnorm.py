"""Whose statistics batch norm uses: of all processes, of one, of parts of the batch, or frozen ones."""

# b examples of this process, B of all

import torch
from torch import Tensor, nn

from covid_cmsf.models.networks import Network
from covid_cmsf.training.distributed import DistributedContext


def use_sync_batchnorm(network: Network) -> Network:
    """Batch norm over the examples of all processes. PyTorch can do it on GPUs only."""
    converted: Network = nn.SyncBatchNorm.convert_sync_batchnorm(network)
    return converted


def train_mode_(network: nn.Module, *, frozen: bool) -> None:
    """Train mode; with `frozen`, batch norm uses its running statistics and leaves them alone."""
    network.train()
    if frozen:
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.eval()


def forward_in_groups(network: nn.Module, view: Tensor, groups: int) -> Tensor:
    """The outputs of a batch that is cut into `groups` parts, each with batch statistics of its own."""
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
    """The target embeddings (B, D) of all processes' views (b, ...).

    With `shuffle` (MoCo's shuffled batch norm) the examples change places between processes and groups first, so that
    a target's batch statistics are not those of its online view, and back afterwards.
    """
    if not shuffle:
        return dist.gather(forward_in_groups(target, view, groups))
    total = len(view) * dist.world_size
    order = torch.randperm(total, generator=generator).to(view.device)
    mine = order[dist.local_slice(total)]
    shuffled = dist.gather(forward_in_groups(target, dist.gather(view)[mine], groups))
    return shuffled[torch.argsort(order)]
