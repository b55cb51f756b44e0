"""k nearest neighbors vote on the class. Every vote counts the same, as in the code of MSF and CMSF."""

# Q queries, K neighbors

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION
from covid_cmsf.evaluation.nearest import center_and_normalize, choose_centering, nearest
from covid_cmsf.evaluation.results import Interval, bootstrap_interval, per_class_accuracy
from covid_cmsf.evaluation.retrieval import gallery_and_query_indices, shared_sources


@dataclass(frozen=True)
class KnnResult:
    """Top-1 accuracy in percent, by the number of neighbors that vote.

    Example:
        >>> result = cc.evaluate_knn(cc.load_features("rgb.safetensors"), num_neighbors=(1, 5))
        >>> sorted(result.top1)
        [1, 5]
    """

    protocol: str
    gallery: str
    query: str
    centering: str
    num_gallery: int
    num_query: int
    top1: dict[int, float]
    interval: dict[int, Interval]
    per_class: dict[int, dict[str, float]]
    num_shared_sources: int  # sources in both subsets; 0 unless they were allowed
    features: list[dict[str, Any]] = field(default_factory=list)


def evaluate_knn(
    features: Features,
    *,
    num_neighbors: Sequence[int] = (1, 20),
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
) -> KnnResult:
    """Return the top-1 accuracy of the vote of the nearest neighbors, for each number of neighbors.

    Example:
        >>> result = cc.evaluate_knn(cc.load_features("rgb.safetensors"), num_neighbors=(1, 5))
    """
    centering_mode = choose_centering(centering, features.protocol)
    videos = features.videos
    index_pair = gallery_and_query_indices(
        videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    gallery_features, query_features = center_and_normalize(
        features.features[index_pair[0]], features.features[index_pair[1]], centering_mode
    )
    if not num_neighbors or max(num_neighbors) > len(gallery_features) or min(num_neighbors) < 1:
        raise ValueError(
            f"k = {list(num_neighbors)}: numbers from 1 to {len(gallery_features)}, the gallery's size, are needed"
        )
    votes = videos.labels[index_pair[0]][nearest(query_features, gallery_features, max(num_neighbors))]  # (Q, K)
    labels, sources = videos.labels[index_pair[1]], videos.take(index_pair[1]).sources
    hits = {k: vote(votes[:, :k], len(videos.class_names)) == labels for k in num_neighbors}
    return KnnResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        centering=centering_mode,
        num_gallery=len(gallery_features),
        num_query=len(query_features),
        top1={k: 100 * float(hit.double().mean()) for k, hit in hits.items()},
        interval={k: bootstrap_interval(hit, sources, seed=seed) for k, hit in hits.items()},
        per_class={k: per_class_accuracy(hit, labels, videos.class_names) for k, hit in hits.items()},
        num_shared_sources=len(shared_sources(videos, *index_pair)),
        features=[features.summary()],
    )


def vote(labels: Tensor, num_classes: int) -> Tensor:
    """(Q, K) labels of neighbors, nearest first -> (Q,) winners; of equal counts, the class that is nearest."""
    num_queries, k = labels.shape
    counts = torch.zeros(num_queries, num_classes, dtype=torch.int64).scatter_add_(1, labels, torch.ones_like(labels))
    ranks = torch.arange(k).expand_as(labels)
    first = torch.full((num_queries, num_classes), k).scatter_reduce_(1, labels, ranks, "amin")
    return (counts * (k + 1) - first).argmax(1)
