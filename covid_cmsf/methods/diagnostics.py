"""What a person needs to trust a run. Labels are looked at here and never in a loss.

Mean shift fails by losing rank while loss and purity look fine, so rank is what to watch.
"""

# B batch, M bank rows, D embedding, K neighbors

import torch
from torch import Tensor

from covid_cmsf.methods.neighbors import Neighbors


def purity(neighbors: Neighbors, labels: Tensor, bank_labels: Tensor, *, own_rows: Tensor) -> float | None:
    """Share of neighbors, the target itself left out, with the example's true label; None without labels."""
    counted = neighbors.found & (neighbors.rows != own_rows[:, None]) & (labels >= 0)[:, None]
    if not counted.any():
        return None
    right = bank_labels[neighbors.rows.clamp(min=0)] == labels[:, None]
    return float((right & counted).sum() / counted.sum())


def mask_purity(allowed: Tensor, labels: Tensor, bank_labels: Tensor, *, own_rows: Tensor) -> float | None:
    """As `purity`, for neighbors given as a mask (B, M): all rows of a class."""
    rows = torch.arange(len(bank_labels), device=allowed.device)
    counted = allowed & (rows[None, :] != own_rows[:, None]) & (labels >= 0)[:, None]
    if not counted.any():
        return None
    return float((counted & (bank_labels[None, :] == labels[:, None])).sum() / counted.sum())


def overlap(first: Neighbors, second: Neighbors) -> float:
    """Share of the first one's neighbors that the second one has too: how far guide and target agree."""
    both = (first.rows[:, :, None] == second.rows[:, None, :]) & first.found[:, :, None]
    return float(both.any(2).sum() / first.found.sum().clamp(min=1))


def embedding_std(embeddings: Tensor) -> float:
    """Mean standard deviation of the coordinates of unit vectors, times sqrt(D): 1 is spread evenly, 0 is collapsed."""
    return float(embeddings.float().std(dim=0).mean() * embeddings.shape[1] ** 0.5)
