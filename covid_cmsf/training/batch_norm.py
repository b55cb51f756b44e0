"""Whose statistics batch norm uses: of all processes, of one, of parts of the batch, or frozen ones."""

# b examples of this process, B of all

import torch
from torch import Tensor, nn

from covid_cmsf.training.networks import Network
from covid_cmsf.training.processes import Processes


def synchronize(network: Network) -> Network:
    """Batch norm over the examples of all processes. PyTorch can do it on GPUs only."""
    return nn.SyncBatchNorm.convert_sync_batchnorm(network)


def train_mode_(network: nn.Module, *, frozen: bool) -> None:
    """Train mode; with `frozen`, batch norm uses its running statistics and leaves them alone."""
    network.train()
    if frozen:
        for part in network.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.eval()


def in_groups(network: nn.Module, view: Tensor, groups: int) -> Tensor:
    """The outputs of a batch that is cut into `groups` parts, each with batch statistics of its own."""
    if groups == 1:
        return network(view)
    return torch.cat([network(part) for part in view.chunk(groups)])


def all_targets(
    target: nn.Module,
    view: Tensor,
    *,
    processes: Processes,
    groups: int = 1,
    shuffle: bool = False,
    generator: torch.Generator,
) -> Tensor:
    """The target embeddings (B, D) of all processes' views (b, ...).

    With `shuffle` (MoCo's shuffled batch norm) the examples change places between processes and groups first, so that
    a target's batch statistics are not those of its online view, and back afterwards.
    """
    if not shuffle:
        return processes.gather(in_groups(target, view, groups))
    total = len(view) * processes.count
    order = torch.randperm(total, generator=generator).to(view.device)
    mine = order[processes.own(total)]
    shuffled = processes.gather(in_groups(target, processes.gather(view)[mine], groups))
    return shuffled[torch.argsort(order)]
