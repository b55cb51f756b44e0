"""Finding neighbors in the bank: the k nearest rows, everywhere, among candidates, or with the same label.

Similarities are in float32. Everything is searched in slices, so that memory stays small for banks of any size.
"""

# B batch, M bank rows, D embedding, N candidates, K neighbors

from collections import defaultdict
from dataclasses import dataclass

import torch
from torch import Tensor

SLICE_BYTES = 32_000_000  # of similarities or gathered rows that are alive at once


@dataclass(frozen=True)
class Neighbors:
    """Rows (B, K) of the bank, nearest first; -1 where there are fewer than K allowed rows."""

    rows: Tensor

    @property
    def found(self) -> Tensor:
        """(B, K): where there is a neighbor."""
        return self.rows >= 0


@torch.no_grad()
def nearest(
    queries: Tensor, bank: Tensor, k: int, *, forbidden: Tensor | None = None, among: Tensor | None = None
) -> Neighbors:
    """The k nearest rows of `bank` (M, D) to each query (B, D): of all, or of the rows `among` (m,) for every query.

    `forbidden` (B, M) rows are left out.
    """
    queries = queries.float()
    count, width = (len(bank), 0) if among is None else (len(among), bank.shape[1])
    values, places = queries.new_empty(len(queries), 0), queries.new_empty(len(queries), 0, dtype=torch.int64)
    for part in slices(count, 4 * max(len(queries), width)):  # not of the batch: so the bank is read only once
        rows = part if among is None else among[part]
        out = None if forbidden is None else forbidden[:, rows]
        values, places = _best_of_both(values, places, _similarity(queries, bank[rows], out), part.start, k)
    found = places if among is None else among[places]
    return Neighbors(torch.where(values == -torch.inf, -1, found))


@torch.no_grad()
def nearest_among(queries: Tensor, bank: Tensor, k: int, candidates: Tensor) -> Neighbors:
    """The k nearest of each query's own candidates (B, N), which are rows of the bank or -1."""
    k = min(k, candidates.shape[1])
    # Made once: small results that stay between large slices that go would scatter the heap, to gigabytes.
    found = candidates.new_empty(len(candidates), k)
    for part in slices(len(queries), 4 * candidates.shape[1] * bank.shape[1]):
        found[part] = _best_candidates(queries[part].float(), bank, candidates[part], k)
    return Neighbors(found)


@torch.no_grad()
def nearest_same_label(
    queries: Tensor, bank: Tensor, k: int, *, labels: Tensor, bank_labels: Tensor, forbidden: Tensor | None = None
) -> Neighbors:
    """The k nearest rows with each query's label (B,); `forbidden` (B, M) rows are left out.

    Small classes are searched all at once. Large ones one after the other, each for all of its queries together, so
    that no row is gathered twice: either way at most M rows are.
    """
    order, start, end = _class_spans(labels, bank_labels)
    longest = int((end - start).max())
    if len(labels) * longest <= len(bank):
        return nearest_among(queries, bank, k, _without(_padded(order, start, end), forbidden))
    asking = defaultdict(list)
    for query, span in enumerate(zip(start.tolist(), end.tolist(), strict=True)):
        asking[span].append(query)
    found = order.new_full((len(labels), min(k, longest)), -1)
    for (first, last), numbers in asking.items():
        who = torch.tensor(numbers, device=labels.device)
        out = None if forbidden is None else forbidden[who]
        rows = nearest(queries[who], bank, k, forbidden=out, among=order[first:last]).rows
        found[who, : rows.shape[1]] = rows
    return Neighbors(found)


def _class_spans(labels: Tensor, bank_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows (M,) class by class, and where among them each query's class starts and ends (B,): nowhere for -1."""
    ordered, order = torch.sort(bank_labels, stable=True)
    start = torch.searchsorted(ordered, labels)
    end = torch.searchsorted(ordered, labels, right=True)
    return order, start, torch.where(labels < 0, start, end)


def _padded(order: Tensor, start: Tensor, end: Tensor) -> Tensor:
    """(B, N): the rows of each query's span, -1 after the last."""
    longest = max(1, int((end - start).max()))
    places = start[:, None] + torch.arange(longest, device=start.device)
    rows = order[places.clamp(max=len(order) - 1)]
    return torch.where(places < end[:, None], rows, -1)


def _without(candidates: Tensor, forbidden: Tensor | None) -> Tensor:
    """The candidates (B, N), -1 where a row is forbidden (B, M)."""
    if forbidden is None:
        return candidates
    out = forbidden.gather(1, candidates.clamp(min=0))
    return torch.where(out, -1, candidates)


def _similarity(queries: Tensor, rows: Tensor, forbidden: Tensor | None) -> Tensor:
    """(B, m): of queries (B, D) and rows (m, D), -inf where `forbidden` (B, m)."""
    similarity = queries @ rows.T
    return similarity if forbidden is None else similarity.masked_fill_(forbidden, -torch.inf)


def _best_of_both(values: Tensor, places: Tensor, similarity: Tensor, start: int, k: int) -> tuple[Tensor, Tensor]:
    """The k best (B, K) of `values` at `places` and of the next slice (B, m), whose first place is `start`."""
    more, where = similarity.topk(min(k, similarity.shape[1]), dim=1)
    values, places = torch.cat([values, more], dim=1), torch.cat([places, where + start], dim=1)
    values, kept = values.topk(min(k, values.shape[1]), dim=1)
    return values, places.gather(1, kept)


def _best_candidates(queries: Tensor, bank: Tensor, candidates: Tensor, k: int) -> Tensor:
    """(b, K): the best of the candidates (b, N), which are copied for it; -1 where there are none left."""
    gathered = bank[candidates.clamp(min=0)]  # (b, N, D)
    similarity = torch.einsum("bd,bnd->bn", queries, gathered).masked_fill_(candidates < 0, -torch.inf)
    return candidates.gather(1, similarity.topk(k, dim=1).indices)


def slices(count: int, bytes_each: int) -> list[slice]:
    """0..count in parts that keep at most `SLICE_BYTES` alive."""
    step = max(1, SLICE_BYTES // max(1, bytes_each))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]
