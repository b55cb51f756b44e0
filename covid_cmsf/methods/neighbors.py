"""Finding neighbors in the bank: the k nearest entries, everywhere, among candidates, or with the same label.

Similarities are in float32. Everything is searched in slices, so that memory stays small for banks of any size.
"""

# B batch, M bank entries, D embedding, N candidates, K neighbors

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

SLICE_BYTES = 32_000_000  # of similarities or gathered entries that are alive at once


@dataclass(frozen=True)
class Neighbors:
    """Entries (B, K) of the bank, nearest first; -1 where there are fewer than K allowed entries."""

    indices: Tensor

    @property
    def found(self) -> Tensor:
        """(B, K): where there is a neighbor."""
        return self.indices >= 0


@torch.no_grad()
def nearest(
    queries: Tensor, bank: Tensor, k: int, *, forbidden: Tensor | None = None, among: Tensor | None = None
) -> Neighbors:
    """The k nearest entries of `bank` (M, D) to each query (B, D): of all, or of those `among` (m,).

    `forbidden` (B, M) entries are left out.
    """
    queries = queries.float()
    count, width = (len(bank), 0) if among is None else (len(among), bank.shape[1])
    values, positions = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.int64)
    for chunk in slices(count, 4 * max(len(queries), width)):  # not of the batch: so the bank is read only once
        indices = chunk if among is None else among[chunk]
        out = None if forbidden is None else forbidden[:, indices]
        values, positions = _merge_topk(values, positions, _similarity(queries, bank[indices], out), chunk.start, k)
    found = positions if among is None else among[positions]
    return Neighbors(torch.where(values == -torch.inf, -1, found))


@torch.no_grad()
def nearest_among(queries: Tensor, bank: Tensor, k: int, candidates: Tensor) -> Neighbors:
    """The k nearest of each query's own candidates (B, N), which are entries of the bank or -1."""
    k = min(k, candidates.shape[1])
    # Made once: small results that stay between large slices that go would scatter the heap, to gigabytes.
    found = candidates.new_empty(len(candidates), k)
    for chunk in slices(len(queries), 4 * candidates.shape[1] * bank.shape[1]):
        found[chunk] = _topk_candidates(queries[chunk].float(), bank, candidates[chunk], k)
    return Neighbors(found)


@torch.no_grad()
def nearest_same_label(
    queries: Tensor, bank: Tensor, k: int, *, labels: Tensor, bank_labels: Tensor, forbidden: Tensor | None = None
) -> Neighbors:
    """The k nearest entries with each query's label (B,); `forbidden` (B, M) entries are left out.

    Small classes are searched all at once. Large ones one after the other, each for all of its queries together, so
    that no entry is gathered twice: either way at most M entries are.
    """
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
    """Entries (M,) class by class, and where among them each query's class starts and ends (B,): nowhere for -1."""
    ordered, order = torch.sort(bank_labels, stable=True)
    start = torch.searchsorted(ordered, labels)
    end = torch.searchsorted(ordered, labels, right=True)
    return order, start, torch.where(labels < 0, start, end)


def _padded_spans(order: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """(B, N): the entries of each query's span, -1 after the last."""
    longest = max(1, int((end - start).max()))
    positions = start[:, None] + torch.arange(longest, device=start.device)
    indices = order[positions.clamp(max=len(order) - 1)]
    return torch.where(positions < end[:, None], indices, -1)


def _drop_forbidden(candidates: Tensor, forbidden: Tensor | None) -> Tensor:
    """The candidates (B, N), -1 where an entry is forbidden (B, M)."""
    if forbidden is None:
        return candidates
    out = forbidden.gather(1, candidates.clamp(min=0))
    return torch.where(out, -1, candidates)


def _similarity(queries: Tensor, entries: Tensor, forbidden: Tensor | None) -> Tensor:
    """(B, m): of queries (B, D) and entries (m, D), -inf where `forbidden` (B, m)."""
    similarity = queries @ entries.T
    return similarity if forbidden is None else similarity.masked_fill_(forbidden, -torch.inf)


def _merge_topk(values: Tensor, positions: Tensor, similarity: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """The k best (B, K) of `values` at `places` and of the next slice (B, m), whose first place is `start`."""
    new_values, where = similarity.topk(min(k, similarity.shape[1]), dim=1)
    values, positions = torch.cat([values, new_values], dim=1), torch.cat([positions, where + start], dim=1)
    values, kept = values.topk(min(k, values.shape[1]), dim=1)
    return values, positions.gather(1, kept)


def _topk_candidates(queries: Tensor, bank: Tensor, candidates: Tensor, k: int) -> Tensor:
    """(b, K): the best of the candidates (b, N), which are copied for it; -1 where there are none left."""
    gathered = bank[candidates.clamp(min=0)]  # (b, N, D)
    similarity = torch.einsum("bd,bnd->bn", queries, gathered).masked_fill_(candidates < 0, -torch.inf)
    return candidates.gather(1, similarity.topk(k, dim=1).indices)


def slices(count: int, bytes_each: int) -> list[slice]:
    """0..count in parts that keep at most `SLICE_BYTES` alive."""
    step = max(1, SLICE_BYTES // max(1, bytes_each))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
