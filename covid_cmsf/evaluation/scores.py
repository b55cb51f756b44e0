"""Class probabilities -> top-1, top-5, accuracy by class, confusion matrix."""

# N videos, C classes

from dataclasses import dataclass

import torch
from torch import Tensor

from covid_cmsf.evaluation.bootstrap import Interval, bootstrap_interval
from covid_cmsf.evaluation.retrieval import mean_by_class
from covid_cmsf.evaluation.videos import Videos


@dataclass(frozen=True)
class Scores:
    """Percentages; `confusion[i][j]` counts videos of class i that were taken for class j."""

    num_videos: int
    top1: float
    interval: Interval  # of top-1, 95%, resampling sources
    top5: float | None  # None where there are five classes or fewer
    mean_per_class: float
    per_class: dict[str, float]
    confusion: list[list[int]]


def score(probabilities: Tensor, videos: Videos, *, seed: int = 0) -> Scores:
    """(N, C) probabilities of these videos; equal ones are ranked by class number."""
    if not torch.isfinite(probabilities).all():
        raise RuntimeError("the classifier gives probabilities that are not finite")
    num_classes = probabilities.shape[1]
    ranked = torch.argsort(-probabilities, dim=1, stable=True)  # (N, C)
    right = ranked == videos.labels[:, None]
    hits = right[:, 0]
    per_class = mean_by_class(hits, videos.labels, videos.class_names)
    pairs = videos.labels * num_classes + ranked[:, 0]
    return Scores(
        num_videos=len(videos),
        top1=100 * float(hits.double().mean()),
        interval=bootstrap_interval(hits, videos.sources, seed=seed),
        top5=100 * float(right[:, :5].any(1).double().mean()) if num_classes > 5 else None,
        mean_per_class=sum(per_class.values()) / len(per_class),
        per_class=per_class,
        confusion=pairs.bincount(minlength=num_classes**2).view(num_classes, num_classes).tolist(),
    )
