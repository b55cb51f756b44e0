"""Exact nearest neighbors by cosine similarity: the same result for any block size, ties broken by index.

Features are centered and normalized first. The last bits of an fp32 matrix product depend on the block size, so it only
proposes candidates: wherever two are so close that these bits could decide, the similarity is computed again, in
float64 rounded to fp32.
"""

# Q queries, G gallery entries, D feature, K neighbors, P candidates

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.evaluation.chunks import column_mean, map_rows, row_chunks

Centering = Literal["train", "own", "none"]
CENTERING_BY_PROTOCOL: dict[str, Centering] = {"clean": "train", "coclr": "own"}


def choose_centering(name: str | None, protocol: str) -> Centering:
    """Return `name` if it is a valid centering; the default of `protocol` if it is None."""
    if name is None:
        return CENTERING_BY_PROTOCOL[protocol]
    if name not in get_args(Centering):
        raise ValueError(f"unknown centering {name!r}; choose from {', '.join(get_args(Centering))}")
    return name  # type: ignore[return-value]


def center_and_normalize(gallery: Tensor, queries: Tensor, centering: Centering) -> tuple[Tensor, Tensor]:
    """Center (G, D) gallery and (Q, D) query features and scale them to unit length, fp32.

    `train` subtracts the mean of the gallery from both, so a query's result does not depend on other queries. `own`
    subtracts the mean of each set from itself, as CoCLR does. Means are computed in float64.
    """
    means = [torch.zeros(gallery.shape[1], dtype=torch.float64)] * 2
    if centering != "none":
        mean = column_mean(gallery)
        means = [mean, column_mean(queries) if centering == "own" else mean]
    return _center(gallery, means[0]), _center(queries, means[1])


def _center(features: Tensor, mean: Tensor) -> Tensor:
    return map_rows(features, lambda rows: F.normalize(rows - mean, dim=1))


Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
GROUP_SIZE = 32  # similarities per group; candidates are found by the maximum of each group
EXTRA_CANDIDATES = 4  # candidates beyond K
BLOCK_QUERIES = 768  # queries per block: the fastest size of the matrix product
BLOCK_VALUES = 16_000_000  # similarities per block, at most
TILE_SIZE = 131_072  # entries of a larger gallery that are searched at a time: blocks keep enough queries
EXHAUSTIVE_ROWS = 16_384  # gallery entries per float64 product
PAD_SIMILARITY = np.float32(-4.0)  # below every cosine


def nearest(queries: Tensor, gallery: Tensor, k: int, *, block_size: int | None = None) -> Tensor:
    """Return the (Q, K) int64 gallery indices of the nearest neighbors, most similar first.

    `queries` (Q, D) and `gallery` (G, D) have norm at most 1. numpy's matrix product is used because it is 1.5 times as
    fast as torch's on AMD processors.
    """
    if not 1 <= k <= len(gallery):
        raise ValueError(f"k = {k}: must be 1 to {len(gallery)}, the size of the gallery")
    if len(gallery) > TILE_SIZE:
        return _nearest_in_tiles(queries, gallery, k)
    if block_size is None:
        block_size = max(1, min(BLOCK_QUERIES, len(queries), BLOCK_VALUES // len(gallery)))
    query_array, gallery_array = (
        np.ascontiguousarray(features.numpy(), dtype=np.float32) for features in (queries, gallery)
    )
    similarities = np.empty((block_size, len(gallery_array)), dtype=np.float32)  # reused by all blocks
    neighbors = [np.zeros((0, k), dtype=np.int64)]
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads) as pool:
        for start in range(0, len(query_array), block_size):
            block = query_array[start : start + block_size]
            product = np.matmul(block, gallery_array.T, out=similarities[: len(block)])
            chunks = zip(np.array_split(block, num_threads), np.array_split(product, num_threads), strict=True)
            neighbors += pool.map(lambda chunk: _resolve_ties(chunk[0], gallery_array, chunk[1], k), chunks)
    return torch.from_numpy(np.concatenate(neighbors))


def _nearest_in_tiles(queries: Tensor, gallery: Tensor, k: int) -> Tensor:
    """Merge the nearest neighbors in each tile of a large gallery, by exact similarity and index: the same result."""
    starts = range(0, len(gallery), TILE_SIZE)
    tiles = [gallery[start : start + TILE_SIZE] for start in starts]
    found = [nearest(queries, tile, min(k, len(tile))) + start for start, tile in zip(starts, tiles, strict=True)]
    candidates = torch.cat(found, dim=1).sort(dim=1).values  # (Q, P), ascending: ties stay in index order
    neighbors = torch.empty(len(queries), k, dtype=torch.int64)
    for rows in row_chunks(len(queries), candidates.shape[1] * gallery.shape[1]):
        pairs = gallery[candidates[rows]].double() @ queries[rows].double()[:, :, None]  # (Q, P, 1)
        order = torch.argsort(-pairs[:, :, 0].float(), dim=1, stable=True)[:, :k]
        neighbors[rows] = candidates[rows].gather(1, order)
    return neighbors


def nearest_others(features: Tensor, indices: Tensor, k: int) -> Tensor:
    """Return the (Q, K) nearest neighbors of the rows `indices` (Q,) of unit features (N, D), without the row itself.

    Only the row itself is left out: an identical one stays.
    """
    if not 1 <= k <= len(features) - 1:
        raise ValueError(f"k = {k}: must be 1 to {len(features) - 1}, the number of other videos")
    found = nearest(features[indices], features, k + 1)
    is_self = found == indices[:, None]
    is_self[~is_self.any(1), -1] = True  # more than k identical rows come first: drop the last of them
    return found[~is_self].view(len(indices), k)


def _resolve_ties(queries: Floats, gallery: Floats, similarities: Floats, k: int) -> Indices:
    """Return the (Q, K) nearest neighbors from (Q, G) similarities whose last bits are unreliable."""
    if not len(queries):
        return np.zeros((0, k), dtype=np.int64)
    values, columns = _propose_candidates(similarities, min(k + EXTRA_CANDIDATES, len(gallery)))
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    # Twice the largest probable error of a dot product of unit vectors. Padding values are far apart.
    close = ranked[:, :-1] - ranked[:, 1:] < 2 * math.sqrt(queries.shape[1]) * 2.0**-24  # (Q, P - 1)
    ambiguous = np.zeros(ranked.shape, dtype=bool)
    ambiguous[:, 1:] |= close
    ambiguous[:, :-1] |= close
    rows, ranks = np.nonzero(ambiguous)
    positions = order[rows, ranks]
    values[rows, positions] = _exact_similarities(queries[rows], gallery[columns[rows, positions]])
    changed = np.unique(rows)
    order[changed] = np.argsort(-values[changed], axis=1, kind="stable")  # columns ascend, so ties stay in index order
    neighbors = np.take_along_axis(columns, order[:, :k], axis=1)
    # If all candidates from the K-th on are that close, entries that are not candidates may be as close.
    is_candidate = ranked > PAD_SIMILARITY
    undecided = (close | ~is_candidate[:, 1:])[:, k - 1 :].all(axis=1) & (is_candidate.sum(axis=1) < len(gallery))
    neighbors[undecided] = _rank_exhaustively(queries[undecided], gallery, k)
    return neighbors


def _propose_candidates(similarities: Floats, count: int) -> tuple[Floats, Indices]:
    """Return (Q, P) values and their ascending columns, with at least the `count` largest of each row, padded."""
    num_rows, num_columns = similarities.shape
    grouped = num_columns // GROUP_SIZE * GROUP_SIZE
    num_groups = grouped // GROUP_SIZE
    if num_groups < count:
        return similarities.copy(), np.tile(np.arange(num_columns), (num_rows, 1))
    # The `count` largest values of a row are at least the smallest of the `count` largest group maxima. Members of a
    # group are `num_groups` columns apart, so that the maxima are taken over contiguous slices.
    strides = (similarities.strides[0], num_groups * similarities.itemsize, similarities.itemsize)
    groups = np.lib.stride_tricks.as_strided(similarities, (num_rows, GROUP_SIZE, num_groups), strides, writeable=False)
    largest = groups.max(axis=1)
    threshold = np.partition(largest, num_groups - count, axis=1)[:, num_groups - count, None]
    positions = np.flatnonzero(similarities >= threshold)
    rows, neighbors = np.divmod(positions, num_columns)
    counts = np.bincount(rows, minlength=num_rows)
    used = np.arange(counts.max()) < counts[:, None]
    values = np.broadcast_to(PAD_SIMILARITY - np.arange(used.shape[1], dtype=np.float32), used.shape).copy()
    columns = np.zeros(used.shape, dtype=np.int64)
    values[used], columns[used] = similarities.ravel()[positions], neighbors
    return values, columns


def _exact_similarities(first: Floats, second: Floats) -> Floats:
    """Return the dot products (N,) of (N, D) and (N, D), float64 rounded to fp32."""
    similarities: Floats = np.einsum("nd,nd->n", first, second, dtype=np.float64).astype(np.float32)
    return similarities


def _rank_exhaustively(queries: Floats, gallery: Floats, k: int) -> Indices:
    """Sort all similarities in float64 rounded to fp32, by value and index: for queries with too many ties."""
    if not len(queries):
        return np.zeros((0, k), dtype=np.int64)
    similarities = np.empty((len(queries), len(gallery)), dtype=np.float32)
    for start in range(0, len(gallery), EXHAUSTIVE_ROWS):
        rows = slice(start, start + EXHAUSTIVE_ROWS)
        similarities[:, rows] = queries.astype(np.float64) @ gallery[rows].astype(np.float64).T
    return np.argsort(-similarities, axis=1, kind="stable")[:, :k]
