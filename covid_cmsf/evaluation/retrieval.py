"""Video retrieval: R@k, is a video of the query's class among its k nearest? (Xu et al. 2019, Han et al. 2020)"""

# G gallery videos, Q query videos, D feature, K neighbors

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable, subset_indices
from covid_cmsf.evaluation.nearest import center_and_normalize, choose_centering, nearest
from covid_cmsf.evaluation.results import Interval, bootstrap_interval, per_class_accuracy
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
    num_shared_sources: int  # sources in both subsets; 0 unless they were allowed
    effective_rank: float  # of the gallery
    chance: float  # R@1 of a random ranking
    features: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class GalleryAndQuery:
    """Unit-length features of the two subsets that are compared."""

    gallery: Tensor  # (G, D)
    queries: Tensor  # (Q, D)
    gallery_labels: Tensor  # (G,)
    query_labels: Tensor  # (Q,)
    query_sources: tuple[str, ...]
    class_names: tuple[str, ...]
    centering: str
    num_shared_sources: int


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
    selected = select_gallery_and_query(
        features,
        gallery,
        query,
        centering=centering,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
    )
    return RetrievalResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        features=[features.summary()],
        **score_retrieval(selected, seed=seed),
    )


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
    index_pair = gallery_and_query_indices(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    gallery_features, query_features = center_and_normalize(
        features.features[index_pair[0]], features.features[index_pair[1]], mode
    )
    return pair_features(features.videos, index_pair, gallery_features, query_features, centering=mode)


def pair_features(
    videos: VideoTable, index_pair: tuple[Tensor, Tensor], gallery: Tensor, queries: Tensor, *, centering: str
) -> GalleryAndQuery:
    """Add labels and sources to unit-length gallery (G, D) and query (Q, D) features."""
    gallery_indices, query_indices = index_pair
    return GalleryAndQuery(
        gallery=gallery,
        queries=queries,
        gallery_labels=videos.labels[gallery_indices],
        query_labels=videos.labels[query_indices],
        query_sources=videos.take(query_indices).sources,
        class_names=videos.class_names,
        centering=centering,
        num_shared_sources=len(shared_sources(videos, *index_pair)),
    )


def gallery_and_query_indices(
    videos: VideoTable, gallery: str, query: str, *, allow_shared_sources: bool, val_fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Return the indices (G,) and (Q,) of both subsets; ValueError if they overlap or share sources."""
    gallery_indices, query_indices = (
        subset_indices(videos, name, val_fraction=val_fraction, seed=seed) for name in (gallery, query)
    )
    if set(gallery_indices.tolist()) & set(query_indices.tolist()):
        raise ValueError(f"the subsets {gallery!r} and {query!r} have videos in common: a video would find itself")
    check_shared_sources(videos, gallery_indices, query_indices, allow_shared_sources=allow_shared_sources)
    return gallery_indices, query_indices


def check_shared_sources(videos: VideoTable, first: Tensor, second: Tensor, *, allow_shared_sources: bool) -> int:
    """Return the number of sources in both sets of indices; ValueError if there are any and they are not allowed."""
    shared = shared_sources(videos, first, second)
    if shared and not allow_shared_sources:
        names = [videos.subsets[int(indices[0])] for indices in (first, second)]
        raise ValueError(
            f"{len(shared)} sources are in both {names[0]!r} and {names[1]!r}, for example {shared[0]!r}: their clips "
            "would find each other. Change the split, or use --allow-shared-sources; the result records it"
        )
    return len(shared)


def shared_sources(videos: VideoTable, first: Tensor, second: Tensor) -> list[str]:
    """Return the sorted sources that occur in both sets of indices."""
    in_first, in_second = ({videos.sources[i] for i in indices.tolist()} for indices in (first, second))
    return sorted(in_first & in_second)


def score_retrieval(selected: GalleryAndQuery, *, seed: int) -> dict[str, Any]:
    """Return the scores of a `RetrievalResult` by name."""
    labels, gallery_labels = selected.query_labels, selected.gallery_labels
    ranks = [k for k in RANKS if k <= len(selected.gallery)]
    neighbors = nearest(selected.queries, selected.gallery, ranks[-1])  # (Q, K)
    correct = gallery_labels[neighbors] == labels[:, None]
    hits = {k: correct[:, :k].any(1) for k in ranks}
    return {
        "centering": selected.centering,
        "num_gallery": len(selected.gallery),
        "num_query": len(selected.queries),
        "recall": {k: 100 * float(hit.double().mean()) for k, hit in hits.items()},
        "interval": {k: bootstrap_interval(hit, selected.query_sources, seed=seed) for k, hit in hits.items()},
        "per_class": per_class_accuracy(hits[1], labels, selected.class_names),
        "num_shared_sources": selected.num_shared_sources,
        "effective_rank": effective_rank(selected.gallery),
        "chance": 100 * float((gallery_labels == labels[:, None]).double().mean()),
    }
