"""Mean shift (CMSF eq. 1): pull each online embedding toward its neighbors in the bank.

    loss = mean over the batch of the mean over the neighbors z of (2 - 2 v.z)

v is the online prediction, z are neighbors of the *target* u; both are unit vectors. Only v carries a gradient.
"""

# B batch, M bank rows, D embedding, K neighbors

import torch
from torch import Tensor

from covid_cmsf.methods.example_losses import ExampleLosses, counted_only
from covid_cmsf.methods.neighbors import Neighbors, slices


def mean_shift_loss(online: Tensor, bank: Tensor, neighbors: Neighbors) -> ExampleLosses:
    """The loss of online embeddings (B, D) against their neighbors among the rows of `bank` (M, D).

    Fewer than K neighbors are averaged as they are; an example without any does not count.
    """
    return _toward(online, *neighbor_means(bank, neighbors))


def neighbor_means(bank: Tensor, neighbors: Neighbors) -> tuple[Tensor, Tensor]:
    """The mean of each example's neighbors (B, D), not normalized, and how many they are (B,)."""
    found = neighbors.found
    rows = bank[neighbors.rows.clamp(min=0)] * found.unsqueeze(2)  # (B, K, D)
    counts = found.sum(1)
    return rows.sum(1) / counts.clamp(min=1).unsqueeze(1), counts


def class_mean_loss(online: Tensor, bank: Tensor, *, labels: Tensor, bank_labels: Tensor) -> ExampleLosses:
    """Top-all: the neighbors are all rows with the example's label, so the loss is 2 - 2 v.(their mean)."""
    ids, inverse = labels.unique(return_inverse=True)
    member = (ids[:, None] == bank_labels[None, :]) & (ids >= 0)[:, None]  # (classes, M)
    means, counts = _means_of(member, bank)
    return _toward(online, means[inverse], counts[inverse])


def allowed_mean_loss(online: Tensor, bank: Tensor, allowed: Tensor) -> ExampleLosses:
    """Top-all of any constraint: the neighbors are the rows where `allowed` (B, M) is True."""
    return _toward(online, *_means_of(allowed, bank))


def _means_of(member: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (N, M) -> the means (N, D) of the rows in each, and how many they are (N,)."""
    counts = member.sum(1)
    sums = torch.cat([member[part].float() @ bank for part in slices(len(member), 4 * len(bank))])
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def _toward(online: Tensor, means: Tensor, counts: Tensor) -> ExampleLosses:
    """The mean of 2 - 2 v.z over neighbors z is 2 - 2 v.(mean of z)."""
    return counted_only(2 - 2 * (online.float() * means).sum(1), counts > 0)
