"""Video retrieval: R@k, is a video of the query's class among its k nearest? (Xu et al. 2019, Han et al. 2020)"""

# G gallery videos, Q query videos, D feature, K neighbors

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import comb
from typing import Any, NamedTuple

from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable, subset_indices
from covid_cmsf.evaluation.nearest import center_and_normalize, choose_centering, nearest
from covid_cmsf.evaluation.overlap import Overlap, check_overlap
from covid_cmsf.evaluation.results import (
    Interval,
    VideoHits,
    bootstrap_interval,
    confusion_matrix,
    per_class_accuracy,
)
from covid_cmsf.models.effective_rank import effective_rank

RANKS = (1, 5, 10, 20, 50)


@dataclass(frozen=True)
class RetrievalResult:
    """Recall in percent. A rank larger than the gallery is omitted from `recall`.

    Example:
        >>> result = cc.retrieval("rgb.safetensors")
        >>> low, high = result.interval[1]  # 95%, resampling the queries' sources
    """

    protocol: str
    gallery: str
    query: str
    centering: str
    num_gallery: int
    num_query: int
    recall: dict[int, float]  # R@k
    interval: dict[int, Interval]  # 95%, resampling the queries' sources
    per_class: dict[str, float]  # R@1
    confusion: list[list[int]]  # [i][j] counts queries of class i whose nearest video is of class j
    effective_rank: float  # of the gallery
    chance: float  # R@1 of a random ranking
    chance_recall: dict[int, float]  # its R@k
    overlap: Overlap  # of gallery and query
    features: list[dict[str, Any]] = field(default_factory=list)


class SubsetPair(NamedTuple):
    """The subset that is searched or learned from, and the one that is evaluated."""

    gallery: Tensor  # (G,) indices of videos
    query: Tensor  # (Q,)
    overlap: Overlap


@dataclass(frozen=True)
class GalleryAndQuery:
    """Unit-length features of the two subsets that are compared."""

    gallery: Tensor  # (G, D)
    queries: Tensor  # (Q, D)
    gallery_labels: Tensor  # (G,)
    query_labels: Tensor  # (Q,)
    query_videos: VideoTable
    class_names: tuple[str, ...]
    centering: str
    overlap: Overlap

    @property
    def query_sources(self) -> tuple[str, ...]:
        """Sources of the query videos."""
        return self.query_videos.sources


def evaluate_retrieval(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
) -> RetrievalResult:
    """Compute R@1, 5, 10, 20, 50 of the query subset in the gallery subset.

    `seed` is used for the fit/val split and the bootstrap.
    """
    return measure_retrieval(
        features,
        gallery=gallery,
        query=query,
        centering=centering,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )[0]


def measure_retrieval(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
) -> tuple[RetrievalResult, dict[int, VideoHits]]:
    """Return R@k and, for each k, which query videos have a video of their class among their k nearest."""
    selected = select_gallery_and_query(
        features,
        gallery,
        query,
        centering=centering,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )
    labels = neighbor_labels(selected)
    hits = retrieval_hits(selected, labels)
    result = RetrievalResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        features=[features.summary()],
        **score_retrieval(selected, labels, seed=seed),
    )
    return result, {k: VideoHits(selected.query_videos, hit) for k, hit in hits.items()}


def select_gallery_and_query(
    features: Features,
    gallery: str,
    query: str,
    *,
    centering: str | None,
    allow_shared_sources: bool,
    val_fraction: float,
    seed: int,
) -> GalleryAndQuery:
    """Select the features of both subsets, center and normalize them."""
    mode = choose_centering(centering, features.protocol)
    pair = select_subsets(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    gallery_features, query_features = center_and_normalize(
        features.features[pair.gallery], features.features[pair.query], mode
    )
    return pair_features(features.videos, pair, gallery_features, query_features, centering=mode)


def pair_features(
    videos: VideoTable, pair: SubsetPair, gallery: Tensor, queries: Tensor, *, centering: str
) -> GalleryAndQuery:
    """Add labels and sources to unit-length gallery (G, D) and query (Q, D) features."""
    return GalleryAndQuery(
        gallery=gallery,
        queries=queries,
        gallery_labels=videos.labels[pair.gallery],
        query_labels=videos.labels[pair.query],
        query_videos=videos.take(pair.query),
        class_names=videos.class_names,
        centering=centering,
        overlap=pair.overlap,
    )


def select_subsets(
    videos: VideoTable, gallery: str, query: str, *, allow_shared_sources: bool, val_fraction: float, seed: int
) -> SubsetPair:
    """Return the indices of both subsets; ValueError if they are empty, unlabeled, or overlap (`check_overlap`)."""
    gallery_indices, query_indices = (
        subset_indices(videos, name, val_fraction=val_fraction, seed=seed) for name in (gallery, query)
    )
    overlap = check_overlap(
        videos,
        gallery_indices,
        query_indices,
        names=(gallery, query),
        allow_shared_sources=allow_shared_sources,
    )
    return SubsetPair(gallery_indices, query_indices, overlap)


def neighbor_labels(selected: GalleryAndQuery) -> Tensor:
    """Return the labels (Q, K) of each query's nearest gallery videos, nearest first, up to the largest rank."""
    ranks = [k for k in RANKS if k <= len(selected.gallery)]
    return selected.gallery_labels[nearest(selected.queries, selected.gallery, ranks[-1])]


def retrieval_hits(selected: GalleryAndQuery, labels: Tensor) -> dict[int, Tensor]:
    """Return per rank k (Q,) whether a video of the query's class is among its k nearest, by their labels (Q, K)."""
    correct = labels == selected.query_labels[:, None]
    return {k: correct[:, :k].any(1) for k in RANKS if k <= labels.shape[1]}


def score_retrieval(selected: GalleryAndQuery, found: Tensor, *, seed: int) -> dict[str, Any]:
    """Return the scores of a `RetrievalResult` by name; `found` (Q, K) as from `neighbor_labels`."""
    labels, gallery_labels = selected.query_labels, selected.gallery_labels
    hits = retrieval_hits(selected, found)
    return {
        "centering": selected.centering,
        "num_gallery": len(selected.gallery),
        "num_query": len(selected.queries),
        "recall": {k: 100 * float(hit.double().mean()) for k, hit in hits.items()},
        "interval": {k: bootstrap_interval(hit, selected.query_sources, seed=seed) for k, hit in hits.items()},
        "per_class": per_class_accuracy(hits[1], labels, selected.class_names),
        "confusion": confusion_matrix(found[:, 0], labels, len(selected.class_names)),
        "overlap": selected.overlap,
        "effective_rank": effective_rank(selected.gallery),
        "chance": chance_r1(labels, gallery_labels),
        "chance_recall": chance_recalls(labels, gallery_labels, list(hits)),
    }


def chance_r1(labels: Tensor, gallery_labels: Tensor) -> float:
    """Return the percentage of pairs of a query and a gallery video, labels (Q,) and (G,), with the same class."""
    counts = gallery_labels.bincount(minlength=int(labels.max()) + 1)
    return 100 * (int(counts[labels].sum()) / (len(labels) * len(gallery_labels)))


def chance_recalls(labels: Tensor, gallery_labels: Tensor, ranks: Sequence[int]) -> dict[int, float]:
    """Return the expected R@k of a random ranking, in percent, for query labels (Q,) and gallery labels (G,)."""
    num_same_class = gallery_labels.bincount(minlength=int(labels.max()) + 1)[labels]
    return {k: chance_recall(num_same_class, len(gallery_labels), k) for k in ranks}


def chance_recall(num_same_class: Tensor | Sequence[int], num_gallery: int, k: int) -> float:
    """Return the percentage of queries with a video of their class among k random draws without replacement.

    `num_same_class` (Q,) counts the gallery videos of each query's class.
    """
    misses = {n: comb(num_gallery - n, k) / comb(num_gallery, k) for n in {int(n) for n in num_same_class}}
    return 100 * (1 - sum(misses[int(n)] for n in num_same_class) / len(num_same_class))
