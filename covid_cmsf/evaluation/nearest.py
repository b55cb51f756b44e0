"""Exact nearest neighbors by cosine: the same answer for any block size, ties broken by index.

A matrix product in fp32 depends in its last bits on how it is cut into blocks. So it only proposes: wherever two
proposals are so close that these bits could decide, the pair is computed again, in float64 rounded to fp32.
"""

# Q queries, G gallery rows, D feature, K neighbors, P proposals

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
GROUP = 32  # similarities of which only the largest is looked at first
SPARE = 4  # proposals beyond K
BLOCK_ROWS = 768  # queries at a time: where the matrix product is quickest
BLOCK_VALUES = 16_000_000  # similarities held at a time, at most
UNUSED = np.float32(-4.0)  # below every cosine


def nearest(queries: Tensor, gallery: Tensor, k: int, *, block_size: int | None = None) -> Tensor:
    """(Q, D) and (G, D) unit vectors (or shorter) -> (Q, K) rows of the gallery, most similar first, int64.

    numpy's matrix product is used, which on AMD processors is half as fast again as torch's.
    """
    if not 1 <= k <= len(gallery):
        raise ValueError(f"{k} neighbors out of {len(gallery)} gallery rows")
    if block_size is None:
        block_size = max(1, min(BLOCK_ROWS, len(queries), BLOCK_VALUES // len(gallery)))
    asked, known = (np.ascontiguousarray(rows.numpy(), dtype=np.float32) for rows in (queries, gallery))
    similar = np.empty((block_size, len(known)), dtype=np.float32)  # one block's, used again and again
    found = [np.zeros((0, k), dtype=np.int64)]
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads) as pool:
        for start in range(0, len(asked), block_size):
            block = asked[start : start + block_size]
            product = np.matmul(block, known.T, out=similar[: len(block)])
            shares = zip(np.array_split(block, num_threads), np.array_split(product, num_threads), strict=True)
            found += pool.map(lambda share: _decided(share[0], known, share[1], k), shares)
    return torch.from_numpy(np.concatenate(found))


def _decided(queries: Floats, gallery: Floats, similar: Floats, k: int) -> Rows:
    """The K nearest of each query, (Q, K), from similarities (Q, G) whose last bits cannot be relied on."""
    if not len(queries):
        return np.zeros((0, k), dtype=np.int64)
    values, columns = _proposals(similar, min(k + SPARE, len(gallery)))
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    # Twice the largest probable error of a dot product of unit vectors. Unused places are far apart.
    close = ranked[:, :-1] - ranked[:, 1:] < 2 * math.sqrt(queries.shape[1]) * 2.0**-24  # (Q, P - 1)
    unsure = np.zeros(ranked.shape, dtype=bool)
    unsure[:, 1:] |= close
    unsure[:, :-1] |= close
    rows, ranks = np.nonzero(unsure)
    places = order[rows, ranks]
    values[rows, places] = _exact(queries[rows], gallery[columns[rows, places]])
    again = np.unique(rows)
    order[again] = np.argsort(-values[again], axis=1, kind="stable")  # columns ascend: equals stay in that order
    found = np.take_along_axis(columns, order[:, :k], axis=1)
    # Where everything from the K-th proposal on is that close, what was not proposed may be as close.
    proposed = ranked > UNUSED
    open_rows = (close | ~proposed[:, 1:])[:, k - 1 :].all(axis=1) & (proposed.sum(axis=1) < len(gallery))
    found[open_rows] = _sorted_in_full(queries[open_rows], gallery, k)
    return found


def _proposals(similar: Floats, count: int) -> tuple[Floats, Rows]:
    """(Q, P) values and their columns, ascending: the `count` largest of each row at least. Unused places fall off."""
    num_rows, num_columns = similar.shape
    whole = num_columns // GROUP * GROUP
    num_groups = whole // GROUP
    if num_groups < count:
        return similar.copy(), np.tile(np.arange(num_columns), (num_rows, 1))
    # The `count` largest values of a row are no smaller than the least of the `count` largest maxima of groups.
    # A group's members lie `num_groups` columns apart, so that whole stretches of a row are compared at once.
    strides = (similar.strides[0], num_groups * similar.itemsize, similar.itemsize)
    groups = np.lib.stride_tricks.as_strided(similar, (num_rows, GROUP, num_groups), strides, writeable=False)
    largest = groups.max(axis=1)
    least = np.partition(largest, num_groups - count, axis=1)[:, num_groups - count, None]
    places = np.flatnonzero(similar >= least)
    rows, found = np.divmod(places, num_columns)
    counts = np.bincount(rows, minlength=num_rows)
    used = np.arange(counts.max()) < counts[:, None]
    values = np.broadcast_to(UNUSED - np.arange(used.shape[1], dtype=np.float32), used.shape).copy()
    columns = np.zeros(used.shape, dtype=np.int64)
    values[used], columns[used] = similar.ravel()[places], found
    return values, columns


def _exact(first: Floats, second: Floats) -> Floats:
    """Dot products of pairs of rows, float64 rounded to fp32."""
    return np.einsum("nd,nd->n", first, second, dtype=np.float64).astype(np.float32)


def _sorted_in_full(queries: Floats, gallery: Floats, k: int) -> Rows:
    """For rows in which too many are equal: all similarities in float64 rounded to fp32, sorted by value and index."""
    if not len(queries):
        return np.zeros((0, k), dtype=np.int64)
    similar = (queries.astype(np.float64) @ gallery.astype(np.float64).T).astype(np.float32)
    return np.argsort(-similar, axis=1, kind="stable")[:, :k]
