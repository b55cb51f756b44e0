"""Exact neighbor search in the bank: the k nearest entries of all, among candidates, or with the same label.

Similarities are in float32. Every search runs in slices, so memory stays small for banks of any size.
"""

# B batch, M bank entries, D embedding, N candidates, K neighbors

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

SLICE_BYTES = 32_000_000  # of similarities or gathered entries that are alive at once


@dataclass(frozen=True)
class Neighbors:
    """Indices (B, K) of bank entries, nearest first; -1 where fewer than K entries are allowed.

    Example:
        >>> cc.Neighbors(torch.tensor([[4, 2, -1]])).found
        tensor([[ True,  True, False]])
    """

    indices: Tensor

    @property
    def found(self) -> Tensor:
        """(B, K): True where there is a neighbor."""
        return self.indices >= 0


@torch.no_grad()
def nearest(
    queries: Tensor, bank: Tensor, k: int, *, forbidden: Tensor | None = None, among: Tensor | None = None
) -> Neighbors:
    """Return the k nearest entries of `bank` (M, D) to each query (B, D): of all, or of those `among` (m,).

    `forbidden` (B, M) entries are never returned.

    Example:
        >>> bank = torch.eye(4)
        >>> cc.nearest(bank[:2], bank, k=1).indices
        tensor([[0],
                [1]])
    """
    queries = queries.float()
    count, width = (len(bank), 0) if among is None else (len(among), bank.shape[1])
    values, positions = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.int64)
    for chunk in slices(
        count, 4 * max(len(queries), width)
    ):  # slices of the bank, not of the batch: it is read only once
        indices = chunk if among is None else among[chunk]
        out = None if forbidden is None else forbidden[:, indices]
        values, positions = _merge_topk(values, positions, _similarity(queries, bank[indices], out), chunk.start, k)
    found = positions if among is None else among[positions]
    return Neighbors(torch.where(values == -torch.inf, -1, found))


@torch.no_grad()
def nearest_among(queries: Tensor, bank: Tensor, k: int, candidates: Tensor) -> Neighbors:
    """Return the k nearest of each query's own candidates (B, N), which are entries of the bank or -1."""
    k = min(k, candidates.shape[1])
    # Allocated once: small results kept between large temporaries would fragment the heap, up to gigabytes.
    found = candidates.new_empty(len(candidates), k)
    for chunk in slices(len(queries), 4 * candidates.shape[1] * bank.shape[1]):
        found[chunk] = _topk_candidates(queries[chunk].float(), bank, candidates[chunk], k)
    return Neighbors(found)


@torch.no_grad()
def nearest_same_label(
    queries: Tensor, bank: Tensor, k: int, *, labels: Tensor, bank_labels: Tensor, forbidden: Tensor | None = None
) -> Neighbors:
    """Return the k nearest entries with each query's label (B,); `forbidden` (B, M) entries are never returned.

    On a CPU small classes are searched all at once, and large ones one after the other, each for all of its queries
    together, so that no entry is gathered twice: either way at most M entries are.
    """
    if queries.device.type != "cpu":  # a GPU compares all with all sooner than the CPU learns the sizes of classes
        other = (labels[:, None] != bank_labels[None, :]) | (labels < 0)[:, None]
        return nearest(queries, bank, k, forbidden=other if forbidden is None else other | forbidden)
    order, start, end = _class_spans(labels, bank_labels)
    longest = int((end - start).max())
    if len(labels) * longest <= len(bank):
        return nearest_among(queries, bank, k, _drop_forbidden(_padded_spans(order, start, end), forbidden))
    queries_by_span = defaultdict(list)
    for query, span in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        queries_by_span[span].append(query)
    found = order.new_full((len(labels), min(k, longest)), -1)
    for (first, last), query_numbers in queries_by_span.items():
        query_indices = torch.tensor(query_numbers, device=labels.device)
        out = None if forbidden is None else forbidden[query_indices]
        indices = nearest(queries[query_indices], bank, k, forbidden=out, among=order[first:last]).indices
        found[query_indices, : indices.shape[1]] = indices
    return Neighbors(found)


def _class_spans(labels: Tensor, bank_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the entries (M,) sorted by class, and where each query's class starts and ends among them (B,)."""
    ordered, order = torch.sort(bank_labels, stable=True)
    start = torch.searchsorted(ordered, labels)
    end = torch.searchsorted(ordered, labels, right=True)
    return order, start, torch.where(labels < 0, start, end)


def _padded_spans(order: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """Return the entries (B, N) of each query's span, -1 after the last."""
    longest = max(1, int((end - start).max()))
    positions = start[:, None] + torch.arange(longest, device=start.device)
    indices = order[positions.clamp(max=len(order) - 1)]
    return torch.where(positions < end[:, None], indices, -1)


def _drop_forbidden(candidates: Tensor, forbidden: Tensor | None) -> Tensor:
    """Return the candidates (B, N), -1 where an entry is forbidden (B, M)."""
    if forbidden is None:
        return candidates
    out = forbidden.gather(1, candidates.clamp(min=0))
    return torch.where(out, -1, candidates)


def _similarity(queries: Tensor, entries: Tensor, forbidden: Tensor | None) -> Tensor:
    """Return the similarity (B, m) of queries (B, D) and entries (m, D), -inf where `forbidden` (B, m)."""
    similarity = queries @ entries.T
    return similarity if forbidden is None else similarity.masked_fill_(forbidden, -torch.inf)


def _merge_topk(values: Tensor, positions: Tensor, similarity: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """Return the k best (B, K) of `values` at `positions` and of the next slice (B, m), which begins at `start`."""
    new_values, where = similarity.topk(min(k, similarity.shape[1]), dim=1)
    values, positions = torch.cat([values, new_values], dim=1), torch.cat([positions, where + start], dim=1)
    values, kept = values.topk(min(k, values.shape[1]), dim=1)
    return values, positions.gather(1, kept)


def _topk_candidates(queries: Tensor, bank: Tensor, candidates: Tensor, k: int) -> Tensor:
    """Return the k best (b, K) of the candidates (b, N), -1 where there are fewer. Copies their embeddings."""
    gathered = bank[candidates.clamp(min=0)]  # (b, N, D)
    similarity = torch.einsum("bd,bnd->bn", queries, gathered).masked_fill_(candidates < 0, -torch.inf)
    return candidates.gather(1, similarity.topk(k, dim=1).indices)


def neighbor_mean(bank: Tensor, neighbors: Neighbors) -> tuple[Tensor, Tensor]:
    """Return the mean (B, D) of each sample's neighbors in `bank` (M, D), not normalized, and their number (B,)."""
    found = neighbors.found
    gathered = bank[neighbors.indices.clamp(min=0)] * found.unsqueeze(2)  # (B, K, D)
    counts = found.sum(1)
    return gathered.sum(1) / counts.clamp(min=1).unsqueeze(1), counts


def masked_mean(bank: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean (N, D) of the entries where each row of `mask` (N, M) is True, and their number (N,)."""
    counts = mask.sum(1)
    sums = torch.cat([mask[chunk].float() @ bank for chunk in slices(len(mask), 4 * len(bank))])
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def slices(count: int, bytes_each: int) -> list[slice]:
    """Return slices of 0..count that keep at most `SLICE_BYTES` alive."""
    step = max(1, SLICE_BYTES // max(1, bytes_each))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
