"""k-nearest-neighbor classification with unweighted votes, as in the code of MSF and CMSF."""

# Q queries, K neighbors

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION
from covid_cmsf.evaluation.nearest import nearest
from covid_cmsf.evaluation.overlap import Overlap
from covid_cmsf.evaluation.results import Interval, bootstrap_interval, confusion_matrix, per_class_accuracy
from covid_cmsf.evaluation.retrieval import chance_r1, select_gallery_and_query


@dataclass(frozen=True)
class KnnResult:
    """Top-1 accuracy in percent, by number of neighbors.

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
    confusion: dict[int, list[list[int]]]  # [i][j] counts queries of class i that were classified as class j
    chance: float  # top-1 of a random neighbor
    overlap: Overlap  # of gallery and query
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
    """Classify every query by its nearest gallery videos, for each of `num_neighbors`.

    Example:
        >>> result = cc.evaluate_knn(cc.load_features("rgb.safetensors"), num_neighbors=(1, 5))
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
    if not num_neighbors or max(num_neighbors) > len(selected.gallery) or min(num_neighbors) < 1:
        raise ValueError(
            f"k = {list(num_neighbors)}: must be 1 to {len(selected.gallery)}, the number of gallery videos"
        )
    neighbors = nearest(selected.queries, selected.gallery, max(num_neighbors))  # (Q, K)
    votes = selected.gallery_labels[neighbors]
    labels, sources, class_names = selected.query_labels, selected.query_sources, features.videos.class_names
    predicted = {k: vote(votes[:, :k], len(class_names)) for k in num_neighbors}
    hits = {k: one == labels for k, one in predicted.items()}
    return KnnResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        centering=selected.centering,
        num_gallery=len(selected.gallery),
        num_query=len(selected.queries),
        top1={k: 100 * float(hit.double().mean()) for k, hit in hits.items()},
        interval={k: bootstrap_interval(hit, sources, seed=seed) for k, hit in hits.items()},
        per_class={k: per_class_accuracy(hit, labels, class_names) for k, hit in hits.items()},
        confusion={k: confusion_matrix(one, labels, len(class_names)) for k, one in predicted.items()},
        chance=chance_r1(labels, selected.gallery_labels),
        overlap=selected.overlap,
        features=[features.summary()],
    )


def vote(labels: Tensor, num_classes: int) -> Tensor:
    """Map (Q, K) neighbor labels, nearest first, to (Q,) predictions; ties go to the class of the nearest."""
    num_queries, k = labels.shape
    counts = torch.zeros(num_queries, num_classes, dtype=torch.int64).scatter_add_(1, labels, torch.ones_like(labels))
    ranks = torch.arange(k).expand_as(labels)
    first = torch.full((num_queries, num_classes), k).scatter_reduce_(1, labels, ranks, "amin")
    return (counts * (k + 1) - first).argmax(1)
