"""Who was found for each query, by the very functions that measured R@1."""

# Q queries, K neighbors

from dataclasses import dataclass

import torch
from torch import Tensor

from covid_cmsf.evaluation.centering import choose_centering, comparable
from covid_cmsf.evaluation.features import Features
from covid_cmsf.evaluation.nearest import nearest
from covid_cmsf.evaluation.parts import VAL_SHARE
from covid_cmsf.evaluation.retrieval import RANKS, parts_for_retrieval


@dataclass(frozen=True)
class Ranking:
    """`queries` and `found` are rows of the features file; `vectors` are the queries as they were compared."""

    queries: Tensor  # (Q,)
    found: Tensor  # (Q, K), nearest first
    similarity: Tensor  # (Q, K) cosines
    right: Tensor  # (Q, K) whether the class is the query's
    vectors: Tensor  # (Q, D) unit vectors

    @property
    def first_right(self) -> Tensor:
        """(Q,) the rank, from 1, of the first neighbor of the query's class; 0 where none of the K is."""
        return torch.where(self.right.any(1), self.right.int().argmax(1) + 1, 0)

    @property
    def r1(self) -> float:
        """R@1 in percent."""
        return 100 * float(self.right[:, 0].double().mean())


def rank_queries(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
) -> Ranking:
    """The 50 nearest of every query (fewer in a smaller gallery), as `evaluate_retrieval` finds them."""
    chosen = choose_centering(centering, features.protocol)
    pair = parts_for_retrieval(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_share=VAL_SHARE, seed=0
    )
    known, asked = comparable(features.features[pair[0]], features.features[pair[1]], chosen)
    found = nearest(asked, known, min(RANKS[-1], len(known)))  # (Q, K)
    similarity = cosines(asked, known, found)
    labels = features.videos.labels
    rows = pair[0][found]
    return Ranking(pair[1], rows, similarity, labels[rows] == labels[pair[1]][:, None], asked)


def cosines(asked: Tensor, known: Tensor, found: Tensor, *, block_size: int = 256) -> Tensor:
    """(Q, K): of each query (Q, D) with the rows of (G, D) found for it. In blocks, for (Q, K, D) may be large."""
    blocks = zip(asked.split(block_size), found.split(block_size), strict=True)
    return torch.cat([torch.einsum("qd,qkd->qk", own, known[rows]) for own, rows in blocks])
