"""Rank the gallery for every query, with the functions that compute R@1, and project features to 2D."""

from dataclasses import dataclass

import torch
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features, load_features
from covid_cmsf.evaluation.features.stale import stale_reason
from covid_cmsf.evaluation.features.subsets import UNLABELED, VAL_FRACTION, VideoTable
from covid_cmsf.evaluation.nearest import center_and_normalize, choose_centering, nearest, nearest_others
from covid_cmsf.evaluation.preflight import is_labeled
from covid_cmsf.evaluation.retrieval import RANKS, select_subsets
from covid_cmsf.pages.projection import principal_components, umap_projection
from covid_cmsf.report.runs import StageRun

# Q queries, K neighbors, N samples, D feature

MAX_QUERIES = 5000  # videos that are ranked and drawn where all of them are queries


@dataclass(frozen=True)
class Ranking:
    """Nearest neighbors of every query; `queries` and `neighbors` are indices into the features file."""

    queries: Tensor  # (Q,)
    neighbors: Tensor  # (Q, K), nearest first
    similarity: Tensor  # (Q, K) cosines
    correct: Tensor  # (Q, K) whether the class is the query's; False without labels
    query_features: Tensor  # (Q, D) unit vectors

    @property
    def first_correct(self) -> Tensor:
        """Rank (Q,), from 1, of the first neighbor of the query's class; 0 if none of the K is."""
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
    """Return the 50 nearest neighbors of every query (fewer in a smaller gallery), as in `evaluate_retrieval`."""
    centering_mode = choose_centering(centering, features.protocol)
    pair = select_subsets(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=VAL_FRACTION, seed=0
    )
    gallery_features, query_features = center_and_normalize(
        features.features[pair.gallery], features.features[pair.query], centering_mode
    )
    neighbors = nearest(query_features, gallery_features, min(RANKS[-1], len(gallery_features)))  # (Q, K)
    similarity = cosines(query_features, gallery_features, neighbors)
    labels = features.videos.labels
    videos = pair.gallery[neighbors]
    return Ranking(pair.query, videos, similarity, labels[videos] == labels[pair.query][:, None], query_features)


def rank_others(features: Features) -> Ranking:
    """Return the 50 nearest of all other videos for every video, or for `MAX_QUERIES` of them: that needs no labels.

    As in `find_neighbors`, the mean of all features is subtracted first.
    """
    unit, _ = center_and_normalize(features.features, features.features[:0], "train")
    queries = torch.arange(len(unit))
    if len(unit) > MAX_QUERIES:
        queries = torch.linspace(0, len(unit) - 1, MAX_QUERIES).round().long()  # evenly spaced
    neighbors = nearest_others(unit, queries, min(RANKS[-1], len(unit) - 1))
    labels = features.videos.labels
    correct = (labels[neighbors] == labels[queries][:, None]) & (labels[queries] != UNLABELED)[:, None]
    return Ranking(queries, neighbors, cosines(unit[queries], unit, neighbors), correct, unit[queries])


def cosines(queries: Tensor, gallery: Tensor, neighbors: Tensor, *, block_size: int = 256) -> Tensor:
    """Return the cosines (Q, K) of queries (Q, D) and their neighbors in (G, D); in blocks, to save memory."""
    blocks = zip(queries.split(block_size), neighbors.split(block_size), strict=True)
    return torch.cat([torch.einsum("qd,qkd->qk", query, gallery[indices]) for query, indices in blocks])


@dataclass(frozen=True)
class RankedStage:
    """What the page needs of a stage's features; `queries` and `neighbors` are indices into `videos`."""

    videos: VideoTable
    queries: Tensor  # (Q,)
    neighbors: Tensor  # (Q, K)
    similarity: Tensor  # (Q, K)
    first_correct: Tensor  # (Q,) 0 if none of the K is correct
    labeled: bool  # whether all videos have labels
    r1: float | None  # None unless test videos were searched in the gallery of the evaluation
    pca: Tensor  # (Q, 2)
    explained_variance: tuple[float, float]
    umap: Tensor | None
    evaluation: dict[str, str]  # gallery, query, protocol
    note: str | None


def rank_stage(stage: StageRun, *, umap: bool) -> RankedStage:
    """Rank with the subsets of retrieval.json, or test in train; `note` reports an R@1 that differs from the result.

    Where there are no labels or no test videos, every video is a query, searched among all others.
    """
    assert stage.features is not None
    features = load_features(stage.features)
    checkpoint = stage.folder / "checkpoints" / "last.pt" if stage.spec.trains else None
    if reason := stale_reason(stage.features, features.provenance, checkpoint=checkpoint):
        raise ValueError(f"its features are stale: {reason}; extract them again")
    stated_evaluation = {**stage.result.get("evaluation", {}), **stage.retrieval}
    evaluation = {
        name: str(stated_evaluation.get(name, default)) for name, default in (("gallery", "train"), ("query", "test"))
    }
    labeled = is_labeled(features.videos)
    measured = labeled and (
        evaluation["query"] not in ("test", "train") or evaluation["query"] in features.videos.subsets
    )
    if measured:
        ranking = rank_queries(
            features,
            gallery=evaluation["gallery"],
            query=evaluation["query"],
            centering=stage.retrieval.get("centering"),
            allow_shared_sources=True,  # the evaluation has decided; the page only shows it
        )
    else:
        ranking, evaluation = rank_others(features), {"gallery": "all others", "query": "all"}
    stated = stage.retrieval.get("recall", {}).get("1", stage.result.get("r1"))
    note = None
    if measured and stated is not None and abs(stated - ranking.r1) > 1e-6:
        note = f"{stage.name}: its features give R@1 {ranking.r1:.2f}, its result says {stated:.2f}; evaluate it again"
    points, explained_variance = principal_components(ranking.query_features)
    return RankedStage(
        videos=features.videos,
        queries=ranking.queries,
        neighbors=ranking.neighbors,
        similarity=ranking.similarity,
        first_correct=ranking.first_correct,
        labeled=labeled,
        r1=ranking.r1 if measured else None,
        pca=points,
        explained_variance=explained_variance,
        umap=umap_projection(ranking.query_features) if umap and len(ranking.query_features) > 3 else None,
        evaluation={**evaluation, "protocol": features.protocol},
        note=note,
    )
