"""Features as retrieval compares them: minus a mean, then scaled to unit length."""

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

# G gallery rows, Q queries, D feature


Centering = Literal["train", "own", "none"]
CENTERING_BY_PROTOCOL: dict[str, Centering] = {"clean": "train", "coclr": "own"}


def choose_centering(name: str | None, protocol: str) -> Centering:
    """The named way, or the protocol's own."""
    if name is None:
        return CENTERING_BY_PROTOCOL[protocol]
    if name not in get_args(Centering):
        raise ValueError(f"unknown centering {name!r}; choose from {', '.join(get_args(Centering))}")
    return name  # type: ignore[return-value]


def center_and_normalize(gallery: Tensor, queries: Tensor, centering: Centering) -> tuple[Tensor, Tensor]:
    """(G, D) and (Q, D) as unit vectors in fp32.

    `train` subtracts the gallery's mean from both, so a query's result does not depend on the other queries. `own`
    subtracts from each set its own mean, as CoCLR does. Means are taken in float64.
    """
    gallery, queries = gallery.double(), queries.double()
    mean = gallery.mean(0)
    if centering == "own":
        gallery, queries = gallery - mean, queries - queries.mean(0)
    elif centering == "train":
        gallery, queries = gallery - mean, queries - mean
    return F.normalize(gallery, dim=1).float(), F.normalize(queries, dim=1).float()


# Exact nearest neighbors by cosine: the same answer for any block size, ties broken by index.
#
# A matrix product in fp32 depends in its last bits on how it is cut into blocks. So it only proposes: wherever two
# proposals are so close that these bits could decide, the pair is computed again, in float64 rounded to fp32.

# Q queries, G gallery rows, D feature, K neighbors, P proposals


Floats = NDArray[np.float32]
Indices = NDArray[np.int64]
GROUP_SIZE = 32  # similarities of which only the largest is looked at first
EXTRA_CANDIDATES = 4  # proposals beyond K
BLOCK_QUERIES = 768  # queries at a time: where the matrix product is quickest
BLOCK_VALUES = 16_000_000  # similarities held at a time, at most
PAD_SIMILARITY = np.float32(-4.0)  # below every cosine


def nearest(queries: Tensor, gallery: Tensor, k: int, *, block_size: int | None = None) -> Tensor:
    """(Q, D) and (G, D) unit vectors (or shorter) -> (Q, K) rows of the gallery, most similar first, int64.

    numpy's matrix product is used, which on AMD processors is half as fast again as torch's.
    """
    if not 1 <= k <= len(gallery):
        raise ValueError(f"{k} neighbors out of {len(gallery)} gallery rows")
    if block_size is None:
        block_size = max(1, min(BLOCK_QUERIES, len(queries), BLOCK_VALUES // len(gallery)))
    query_array, gallery_array = (np.ascontiguousarray(rows.numpy(), dtype=np.float32) for rows in (queries, gallery))
    similarities = np.empty((block_size, len(gallery_array)), dtype=np.float32)  # one block's, used again and again
    neighbors = [np.zeros((0, k), dtype=np.int64)]
    num_threads = torch.get_num_threads()
    with ThreadPoolExecutor(num_threads) as pool:
        for start in range(0, len(query_array), block_size):
            block = query_array[start : start + block_size]
            product = np.matmul(block, gallery_array.T, out=similarities[: len(block)])
            chunks = zip(np.array_split(block, num_threads), np.array_split(product, num_threads), strict=True)
            neighbors += pool.map(lambda chunk: _resolve_ties(chunk[0], gallery_array, chunk[1], k), chunks)
    return torch.from_numpy(np.concatenate(neighbors))


def _resolve_ties(queries: Floats, gallery: Floats, similarities: Floats, k: int) -> Indices:
    """The K nearest of each query, (Q, K), from similarities (Q, G) whose last bits cannot be relied on."""
    if not len(queries):
        return np.zeros((0, k), dtype=np.int64)
    values, columns = _propose_candidates(similarities, min(k + EXTRA_CANDIDATES, len(gallery)))
    order = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, order, axis=1)
    # Twice the largest probable error of a dot product of unit vectors. Unused places are far apart.
    close = ranked[:, :-1] - ranked[:, 1:] < 2 * math.sqrt(queries.shape[1]) * 2.0**-24  # (Q, P - 1)
    ambiguous = np.zeros(ranked.shape, dtype=bool)
    ambiguous[:, 1:] |= close
    ambiguous[:, :-1] |= close
    rows, ranks = np.nonzero(ambiguous)
    positions = order[rows, ranks]
    values[rows, positions] = _exact_similarities(queries[rows], gallery[columns[rows, positions]])
    changed = np.unique(rows)
    order[changed] = np.argsort(-values[changed], axis=1, kind="stable")  # columns ascend: equals stay in that order
    neighbors = np.take_along_axis(columns, order[:, :k], axis=1)
    # Where everything from the K-th proposal on is that close, what was not proposed may be as close.
    is_candidate = ranked > PAD_SIMILARITY
    undecided = (close | ~is_candidate[:, 1:])[:, k - 1 :].all(axis=1) & (is_candidate.sum(axis=1) < len(gallery))
    neighbors[undecided] = _rank_exhaustively(queries[undecided], gallery, k)
    return neighbors


def _propose_candidates(similarities: Floats, count: int) -> tuple[Floats, Indices]:
    """(Q, P) values and their columns, ascending: the `count` largest of each row at least. Unused places fall off."""
    num_rows, num_columns = similarities.shape
    grouped = num_columns // GROUP_SIZE * GROUP_SIZE
    num_groups = grouped // GROUP_SIZE
    if num_groups < count:
        return similarities.copy(), np.tile(np.arange(num_columns), (num_rows, 1))
    # The `count` largest values of a row are no smaller than the least of the `count` largest maxima of groups.
    # A group's members lie `num_groups` columns apart, so that whole stretches of a row are compared at once.
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
    """Dot products of pairs of rows, float64 rounded to fp32."""
    products: NDArray[np.float64] = np.einsum("nd,nd->n", first, second, dtype=np.float64)
    return products.astype(np.float32)


def _rank_exhaustively(queries: Floats, gallery: Floats, k: int) -> Indices:
    """For rows in which too many are equal: all similarities in float64 rounded to fp32, sorted by value and index."""
    if not len(queries):
        return np.zeros((0, k), dtype=np.int64)
    similarities = (queries.astype(np.float64) @ gallery.astype(np.float64).T).astype(np.float32)
    return np.argsort(-similarities, axis=1, kind="stable")[:, :k]
