"""Scores of a classifier, bootstrap intervals, and results as JSON."""

# N videos, C classes

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.files import write_text_atomic

NUM_RESAMPLES = 1000
LEVEL = 0.95
Interval = tuple[float, float]


def bootstrap_interval(
    hits: Tensor, sources: Sequence[str], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Interval:
    """Return the 95% percentile interval of 100 * hits.mean(), resampling sources with replacement.

    Clips of one source are correlated, so resampling single videos would give too narrow an interval.
    """
    sums, counts = totals_by_source(hits, sources)
    rng = np.random.default_rng(seed)
    means = np.empty(num_resamples)
    for i in range(num_resamples):
        drawn = rng.integers(len(sums), size=len(sums))
        means[i] = sums[drawn].sum() / counts[drawn].sum()
    low, high = np.quantile(100 * means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def totals_by_source(hits: Tensor, sources: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sum of hits and the number of videos per source, sources sorted by name."""
    index_of = {source: i for i, source in enumerate(sorted(set(sources)))}
    indices = [index_of[source] for source in sources]
    sums, counts = np.zeros(len(index_of)), np.zeros(len(index_of))
    np.add.at(sums, indices, hits.numpy().astype(np.float64))
    np.add.at(counts, indices, 1)
    return sums, counts


def per_class_accuracy(hits: Tensor, labels: Tensor, class_names: Sequence[str]) -> dict[str, float]:
    """Return {class name: percent} for the classes that occur in `labels`."""
    return {
        class_names[label] or str(label): 100 * float(hits[labels == label].double().mean())
        for label in torch.unique(labels).tolist()
    }


def confusion_matrix(predicted: Tensor, labels: Tensor, num_classes: int) -> list[list[int]]:
    """Count per pair of classes the videos of class i (row) that were predicted as class j, both (N,)."""
    pairs = labels * num_classes + predicted
    counts: list[list[int]] = pairs.bincount(minlength=num_classes**2).view(num_classes, num_classes).tolist()
    return counts


class VideoHits(NamedTuple):
    """Which videos were answered correctly."""

    videos: VideoTable
    hits: Tensor  # (N,) bool


def top1_hits(probabilities: Tensor, videos: VideoTable) -> VideoHits:
    """Return for which videos the class with the largest of (N, C) probabilities is the right one."""
    return VideoHits(videos, _rank_classes(probabilities)[:, 0] == videos.labels)


def _rank_classes(probabilities: Tensor) -> Tensor:
    """Return the classes of every video (N, C), most probable first; ties are ranked by class index."""
    return torch.argsort(-probabilities, dim=1, stable=True)


@dataclass(frozen=True)
class Scores:
    """Accuracies in percent; `confusion[i][j]` counts videos of class i that were predicted as class j."""

    num_videos: int
    top1: float
    interval: Interval  # of top-1, 95%, resampling sources
    top5: float | None  # None where there are five classes or fewer
    mean_per_class: float
    per_class: dict[str, float]
    confusion: list[list[int]]


def compute_scores(probabilities: Tensor, videos: VideoTable, *, seed: int = 0) -> Scores:
    """Score (N, C) probabilities against the labels of `videos`; ties are ranked by class index."""
    if not torch.isfinite(probabilities).all():
        raise RuntimeError("the classifier gives probabilities that are not finite")
    num_classes = probabilities.shape[1]
    ranked = _rank_classes(probabilities)
    correct = ranked == videos.labels[:, None]
    hits = correct[:, 0]
    per_class = per_class_accuracy(hits, videos.labels, videos.class_names)
    return Scores(
        num_videos=len(videos),
        top1=100 * float(hits.double().mean()),
        interval=bootstrap_interval(hits, videos.sources, seed=seed),
        top5=100 * float(correct[:, :5].any(1).double().mean()) if num_classes > 5 else None,
        mean_per_class=sum(per_class.values()) / len(per_class),
        per_class=per_class,
        confusion=confusion_matrix(ranked[:, 0], videos.labels, num_classes),
    )


def result_to_dict(kind: str, result: Any) -> dict[str, Any]:
    """Return a result dataclass as JSON values, with `kind` (retrieval, linear, knn, finetune, ...) first."""
    assert is_dataclass(result) and not isinstance(result, type)
    values: dict[str, Any] = json.loads(json.dumps(asdict(result)))
    return {"kind": kind, **values}


def write_result(path: Path, kind: str, result: Any) -> None:
    """Write a result dataclass as a JSON file."""
    write_text_atomic(Path(path), json.dumps(result_to_dict(kind, result), indent=1) + "\n")
