"""What a person needs to trust a run. Labels are looked at here and never in a loss.

Mean shift fails by losing rank while loss and purity look fine, so rank is what to watch.
"""

# B batch, M bank entries, D embedding, K neighbors

import torch
from torch import Tensor

from covid_cmsf.methods.neighbors import Neighbors


def purity(neighbors: Neighbors, labels: Tensor, bank_labels: Tensor, *, own_indices: Tensor) -> float | None:
    """Fraction of neighbors, the target itself left out, with the sample's true label; None without labels."""
    valid = neighbors.found & (neighbors.indices != own_indices[:, None]) & (labels >= 0)[:, None]
    if not valid.any():
        return None
    correct = bank_labels[neighbors.indices.clamp(min=0)] == labels[:, None]
    return float((correct & valid).sum() / valid.sum())


def mask_purity(allowed: Tensor, labels: Tensor, bank_labels: Tensor, *, own_indices: Tensor) -> float | None:
    """As `purity`, for neighbors given as a mask (B, M): all entries of a class."""
    indices = torch.arange(len(bank_labels), device=allowed.device)
    valid = allowed & (indices[None, :] != own_indices[:, None]) & (labels >= 0)[:, None]
    if not valid.any():
        return None
    return float((valid & (bank_labels[None, :] == labels[:, None])).sum() / valid.sum())


def overlap(first: Neighbors, second: Neighbors) -> float:
    """Fraction of the first one's neighbors that the second one has too: how far guide and target agree."""
    both = (first.indices[:, :, None] == second.indices[:, None, :]) & first.found[:, :, None]
    return float(both.any(2).sum() / first.found.sum().clamp(min=1))


def embedding_std(embeddings: Tensor) -> float:
    """Mean standard deviation of the coordinates of unit vectors, times sqrt(D): 1 is spread evenly, 0 is collapsed."""
    return float(embeddings.float().std(dim=0).mean() * embeddings.shape[1] ** 0.5)
