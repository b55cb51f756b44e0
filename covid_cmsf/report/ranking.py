"""Who was found for each query, by the very functions that measured R@1."""

from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable
from covid_cmsf.evaluation.nearest import center_and_normalize, choose_centering, nearest
from covid_cmsf.evaluation.retrieval import RANKS, gallery_and_query_indices
from covid_cmsf.report.runs import StageRun

# Q queries, K neighbors


@dataclass(frozen=True)
class Ranking:
    """`queries` and `found` are rows of the features file; `vectors` are the queries as they were compared."""

    queries: Tensor  # (Q,)
    neighbors: Tensor  # (Q, K), nearest first
    similarity: Tensor  # (Q, K) cosines
    correct: Tensor  # (Q, K) whether the class is the query's
    query_features: Tensor  # (Q, D) unit vectors

    @property
    def first_correct(self) -> Tensor:
        """(Q,) the rank, from 1, of the first neighbor of the query's class; 0 where none of the K is."""
        return torch.where(self.correct.any(1), self.correct.int().argmax(1) + 1, 0)

    @property
    def r1(self) -> float:
        """R@1 in percent."""
        return 100 * float(self.correct[:, 0].double().mean())


def rank_queries(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
) -> Ranking:
    """The 50 nearest of every query (fewer in a smaller gallery), as `evaluate_retrieval` finds them."""
    centering_mode = choose_centering(centering, features.protocol)
    index_pair = gallery_and_query_indices(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=VAL_FRACTION, seed=0
    )
    gallery_features, query_features = center_and_normalize(
        features.features[index_pair[0]], features.features[index_pair[1]], centering_mode
    )
    nearest_rows = nearest(query_features, gallery_features, min(RANKS[-1], len(gallery_features)))  # (Q, K)
    similarity = cosines(query_features, gallery_features, nearest_rows)
    labels = features.videos.labels
    rows = index_pair[0][nearest_rows]
    return Ranking(index_pair[1], rows, similarity, labels[rows] == labels[index_pair[1]][:, None], query_features)


def cosines(queries: Tensor, gallery: Tensor, neighbors: Tensor, *, block_size: int = 256) -> Tensor:
    """(Q, K): of each query (Q, D) with the rows of (G, D) found for it. In blocks, for (Q, K, D) may be large."""
    blocks = zip(queries.split(block_size), neighbors.split(block_size), strict=True)
    return torch.cat([torch.einsum("qd,qkd->qk", query, gallery[rows]) for query, rows in blocks])


# Features in two dimensions: principal components always, UMAP where it is installed.

# N rows, D feature


UMAP_NEIGHBORS, UMAP_MIN_DIST = 15, 0.1  # of UMAP, its own defaults


def principal_components(rows: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """(N, D) -> (N, 2) on the two directions of largest variance, and their shares of the variance.

    Each direction's sign is such that its largest component is positive, so that the same features give the same map.
    """
    centered = rows.double() - rows.double().mean(0)
    values, vectors = torch.linalg.eigh(centered.T @ centered)  # ascending
    directions = vectors[:, -2:].flip(1)  # (D, 2)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = directions * largest.sign()
    total = float(values.clamp_min(0).sum()) or 1.0
    explained_variance = (float(values[-1]) / total, float(values[-2]) / total if len(values) > 1 else 0.0)
    points = centered @ directions
    if points.shape[1] < 2:
        points = torch.cat([points, torch.zeros_like(points)], dim=1)
    return points.float(), explained_variance


def has_umap() -> bool:
    """Whether umap-learn is installed."""
    return find_spec("umap") is not None


def umap_projection(rows: Tensor, *, seed: int = 0) -> Tensor:
    """(N, D) -> (N, 2) by UMAP with the cosine distance. The same seed gives the same map."""
    reducer = import_module("umap").UMAP(
        n_neighbors=min(UMAP_NEIGHBORS, len(rows) - 1),
        min_dist=UMAP_MIN_DIST,
        metric="cosine",
        random_state=seed,
        n_jobs=1,
    )
    return torch.from_numpy(reducer.fit_transform(rows.numpy())).float()


# All that the page needs of a stage's features: neighbors, ranks, a map. The features themselves are let go.

# Q queries, K neighbors


@dataclass(frozen=True)
class RankedStage:
    """`queries` and `found` are rows of `videos`."""

    videos: VideoTable
    queries: Tensor  # (Q,)
    neighbors: Tensor  # (Q, K)
    similarity: Tensor  # (Q, K)
    first_correct: Tensor  # (Q,) 0 where none of the K is right
    r1: float
    pca: Tensor  # (Q, 2)
    explained_variance: tuple[float, float]
    umap: Tensor | None
    evaluation: dict[str, str]  # gallery, query, protocol
    note: str | None


def rank_stage(stage: StageRun, *, umap: bool) -> RankedStage:
    """Measured as the stage's own retrieval.json says, else train against test; a different R@1 is noted."""
    assert stage.features is not None
    features = load_features(stage.features)
    stated_evaluation = {**stage.result.get("evaluation", {}), **stage.retrieval}
    evaluation = {
        name: str(stated_evaluation.get(name, default)) for name, default in (("gallery", "train"), ("query", "test"))
    }
    ranking = rank_queries(
        features,
        gallery=evaluation["gallery"],
        query=evaluation["query"],
        centering=stage.retrieval.get("centering"),
        allow_shared_sources=bool(stage.retrieval.get("num_shared_sources")),
    )
    stated = stage.retrieval.get("recall", {}).get("1", stage.result.get("r1"))
    note = None
    if stated is not None and abs(stated - ranking.r1) > 1e-6:
        note = f"{stage.name}: its features give R@1 {ranking.r1:.2f}, its result says {stated:.2f}; measure it again"
    points, explained_variance = principal_components(ranking.query_features)
    return RankedStage(
        videos=features.videos,
        queries=ranking.queries,
        neighbors=ranking.neighbors,
        similarity=ranking.similarity,
        first_correct=ranking.first_correct,
        r1=ranking.r1,
        pca=points,
        explained_variance=explained_variance,
        umap=umap_projection(ranking.query_features) if umap and len(ranking.query_features) > 3 else None,
        evaluation={**evaluation, "protocol": features.protocol},
        note=note,
    )
