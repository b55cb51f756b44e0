"""Finding neighbours in the bank: the k nearest rows, everywhere or only among candidates.

Similarities are in float32. The batch is searched in slices, so that memory stays small for banks of any size.
"""

# B batch, M bank rows, D embedding, N candidates, K neighbours

from dataclasses import dataclass

import torch
from torch import Tensor

SLICE_BYTES = 32_000_000  # of similarities or gathered rows that are alive at once


@dataclass(frozen=True)
class Neighbours:
    """Rows (B, K) of the bank, nearest first; -1 where there are fewer than K allowed rows."""

    rows: Tensor

    @property
    def found(self) -> Tensor:
        """(B, K): where there is a neighbour."""
        return self.rows >= 0


@torch.no_grad()
def nearest(queries: Tensor, bank: Tensor, k: int, *, forbidden: Tensor | None = None) -> Neighbours:
    """The k nearest of all rows of `bank` (M, D) to each query (B, D); `forbidden` (B, M) rows are left out."""
    k = min(k, len(bank))
    parts = []
    for part in _slices(len(queries), 4 * len(bank)):
        similarity = queries[part].float() @ bank.T  # (b, M)
        if forbidden is not None:
            similarity.masked_fill_(forbidden[part], -torch.inf)
        parts.append(_best(similarity, k))
    return Neighbours(torch.cat(parts))


@torch.no_grad()
def nearest_among(queries: Tensor, bank: Tensor, k: int, candidates: Tensor) -> Neighbours:
    """The k nearest of each query's own candidates (B, N), which are rows of the bank or -1."""
    k = min(k, candidates.shape[1])
    parts = []
    for part in _slices(len(queries), 4 * candidates.shape[1] * bank.shape[1]):
        rows = candidates[part]
        gathered = bank[rows.clamp(min=0)]  # (b, N, D)
        similarity = torch.einsum("bd,bnd->bn", queries[part].float(), gathered)
        places = _best(similarity.masked_fill_(rows < 0, -torch.inf), k)
        parts.append(torch.where(places < 0, -1, rows.gather(1, places.clamp(min=0))))
    return Neighbours(torch.cat(parts))


def same_label_rows(labels: Tensor, bank_labels: Tensor) -> Tensor:
    """(B, N): the rows of the bank with each query's label, -1 after the last. Unknown labels (-1) match nothing."""
    ordered, order = torch.sort(bank_labels, stable=True)
    start = torch.searchsorted(ordered, labels)
    end = torch.searchsorted(ordered, labels, right=True)
    end = torch.where(labels < 0, start, end)
    longest = max(1, int((end - start).max()))
    places = start[:, None] + torch.arange(longest, device=labels.device)
    rows = order[places.clamp(max=len(order) - 1)]
    return torch.where(places < end[:, None], rows, -1)


def _best(similarity: Tensor, k: int) -> Tensor:
    """(b, k) places of the largest values, nearest first; -1 for forbidden ones."""
    values, places = similarity.topk(k, dim=1)
    return torch.where(values == -torch.inf, -1, places)


def _slices(count: int, bytes_each: int) -> list[slice]:
    step = max(1, SLICE_BYTES // max(1, bytes_each))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
