"""Video retrieval: is a video of the query's class among its K nearest? (Han et al. 2020; Xu et al. 2019)"""

# G gallery rows, Q queries, D feature, K neighbors

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
    """R@k in percent, by k; a k larger than the gallery is left out.

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
    chance: float  # R@1 of a random order
    features: list[dict[str, Any]] = field(default_factory=list)


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
    """R@1, 5, 10, 20, 50 of the query subset in the gallery subset. `seed` is that of fit/val and of the bootstrap."""
    centering_mode = choose_centering(centering, features.protocol)
    index_pair = gallery_and_query_indices(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    gallery_features, query_features = (features.features[rows] for rows in index_pair)
    gallery_features, query_features = center_and_normalize(gallery_features, query_features, centering_mode)
    numbers = score_retrieval(features.videos, index_pair, gallery_features, query_features, seed=seed)
    return RetrievalResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        centering=centering_mode,
        features=[features.summary()],
        **numbers,
    )


def gallery_and_query_indices(
    videos: VideoTable, gallery: str, query: str, *, allow_shared_sources: bool, val_fraction: float, seed: int
) -> tuple[Tensor, Tensor]:
    """The rows of both subsets; ValueError when they overlap, or share footage and that was not allowed."""
    gallery_indices, query_indices = (
        subset_indices(videos, name, val_fraction=val_fraction, seed=seed) for name in (gallery, query)
    )
    if set(gallery_indices.tolist()) & set(query_indices.tolist()):
        raise ValueError(f"the subsets {gallery!r} and {query!r} have videos in common: a video would find itself")
    check_shared_sources(videos, gallery_indices, query_indices, allow_shared_sources=allow_shared_sources)
    return gallery_indices, query_indices


def check_shared_sources(videos: VideoTable, first: Tensor, second: Tensor, *, allow_shared_sources: bool) -> int:
    """How many sources both sets of rows have; ValueError if there are any and that was not allowed."""
    shared = shared_sources(videos, first, second)
    if shared and not allow_shared_sources:
        names = [videos.subsets[int(rows[0])] for rows in (first, second)]
        raise ValueError(
            f"{len(shared)} sources stand both in {names[0]!r} and in {names[1]!r}, for example {shared[0]!r}: sibling "
            "clips would find each other. Mend the split, or allow it by --allow-shared-sources; the result says so"
        )
    return len(shared)


def shared_sources(videos: VideoTable, first: Tensor, second: Tensor) -> list[str]:
    """The sources that both sets of rows have, sorted."""
    in_first, in_second = ({videos.sources[i] for i in rows.tolist()} for rows in (first, second))
    return sorted(in_first & in_second)


def score_retrieval(
    videos: VideoTable,
    index_pair: tuple[Tensor, Tensor],
    gallery_features: Tensor,
    query_features: Tensor,
    *,
    seed: int,
) -> dict[str, Any]:
    """The numbers of a `RetrievalResult`, from unit vectors of both subsets."""
    ranks = [k for k in RANKS if k <= len(gallery_features)]
    neighbors = nearest(query_features, gallery_features, ranks[-1])  # (Q, K)
    labels = videos.labels[index_pair[1]]
    correct = videos.labels[index_pair[0]][neighbors] == labels[:, None]
    hits = {k: correct[:, :k].any(1) for k in ranks}
    sources = videos.take(index_pair[1]).sources
    return {
        "num_gallery": len(gallery_features),
        "num_query": len(query_features),
        "recall": {k: 100 * float(hit.double().mean()) for k, hit in hits.items()},
        "interval": {k: bootstrap_interval(hit, sources, seed=seed) for k, hit in hits.items()},
        "per_class": per_class_accuracy(hits[1], labels, videos.class_names),
        "num_shared_sources": len(shared_sources(videos, *index_pair)),
        "effective_rank": effective_rank(gallery_features),
        "chance": 100 * float((videos.labels[index_pair[0]] == labels[:, None]).double().mean()),
    }
