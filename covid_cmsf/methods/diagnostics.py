"""Diagnostics of neighbors and embeddings. True labels are used here and never in a loss.

Mean shift fails by losing rank while loss and purity look fine, so the effective rank is the number to watch.
"""

# B batch, M bank entries, D embedding, K neighbors

import torch
from torch import Tensor

from covid_cmsf.methods.neighbors import Neighbors


def purity(neighbors: Neighbors, labels: Tensor, bank_labels: Tensor, *, own_indices: Tensor) -> float | None:
    """Return the fraction of neighbors, without the target itself, that have the sample's true label.

    None without labels.
    """
    valid = neighbors.found & (neighbors.indices != own_indices[:, None]) & (labels >= 0)[:, None]
    if not valid.any():
        return None
    correct = bank_labels[neighbors.indices.clamp(min=0)] == labels[:, None]
    return float((correct & valid).sum() / valid.sum())


def mask_purity(allowed: Tensor, labels: Tensor, bank_labels: Tensor, *, own_indices: Tensor) -> float | None:
    """Return the purity of neighbors that are given as a mask (B, M)."""
    indices = torch.arange(len(bank_labels), device=allowed.device)
    valid = allowed & (indices[None, :] != own_indices[:, None]) & (labels >= 0)[:, None]
    if not valid.any():
        return None
    return float((valid & (bank_labels[None, :] == labels[:, None])).sum() / valid.sum())


def overlap(first: Neighbors, second: Neighbors) -> float:
    """Return the fraction of the first neighbors that are among the second: how far guide and target agree."""
    both = (first.indices[:, :, None] == second.indices[:, None, :]) & first.found[:, :, None]
    return float(both.any(2).sum() / first.found.sum().clamp(min=1))


def embedding_std(embeddings: Tensor) -> float:
    """Return the mean standard deviation of the coordinates of unit vectors (N, D), times sqrt(D).

    1: spread evenly; 0: collapsed.
    """
    return float(embeddings.float().std(dim=0).mean() * embeddings.shape[1] ** 0.5)
