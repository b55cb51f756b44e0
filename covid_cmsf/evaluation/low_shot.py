"""Low-shot classification: a few labeled videos per class, and the nearest class mean for all others.

With one or five labels per class there is nothing to choose a penalty on, so the classifier has no setting: the class
whose mean of labeled features is nearest by cosine (Snell et al. 2017, without their training).
"""

# N videos, Q queries, C classes, D feature

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable
from covid_cmsf.evaluation.nearest import center_and_normalize, choose_centering
from covid_cmsf.evaluation.overlap import Overlap
from covid_cmsf.evaluation.results import Interval, bootstrap_interval, confusion_matrix, per_class_accuracy
from covid_cmsf.evaluation.retrieval import select_subsets

SHOTS = (1, 5, 10)
NUM_DRAWS = 20


@dataclass(frozen=True)
class LowShotResult:
    """Top-1 accuracy in percent by number of labeled videos per class: mean and standard deviation over draws."""

    protocol: str
    gallery: str
    query: str
    centering: str
    num_gallery: int
    num_query: int
    num_classes: int
    num_draws: int
    top1: dict[int, float]
    deviation: dict[int, float]  # between draws of the labeled videos
    interval: dict[int, Interval]  # of the mean over draws, by resampling the queries' sources
    per_class: dict[int, dict[str, float]]  # mean over draws
    confusion: dict[int, list[list[int]]]  # [i][j]: queries of class i taken for class j, summed over draws
    overlap: Overlap
    features: list[dict[str, Any]] = field(default_factory=list)


def evaluate_low_shot(
    features: Features,
    *,
    shots: Sequence[int] = SHOTS,
    num_draws: int = NUM_DRAWS,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
) -> LowShotResult:
    """Label `shots` gallery videos per class, and classify every query by the nearest class mean; repeat.

    Labeled videos of a class are of different sources as far as there are enough: siblings tell little. The mean that
    is subtracted from all features is that of the whole gallery, which needs no labels.
    """
    mode = choose_centering(centering, features.protocol)
    pair = select_subsets(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    unit, queries = center_and_normalize(features.features[pair.gallery], features.features[pair.query], mode)
    known, asked = features.videos.take(pair.gallery), features.videos.take(pair.query)
    classes = known.labels.unique()
    _check_shots(known, classes, shots, gallery)
    predicted: dict[int, Tensor] = {}  # {shots: (draws, Q)}
    for count in shots:
        draws = [np.random.default_rng([seed, count, draw]) for draw in range(num_draws)]
        labeled = [draw_labeled(known, classes, count, rng) for rng in draws]
        predicted[count] = torch.stack([_predict(one, unit, queries, known.labels) for one in labeled])
    hits = {count: (one == asked.labels).double() for count, one in predicted.items()}
    names = features.videos.class_names
    return LowShotResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        centering=mode,
        num_gallery=len(known),
        num_query=len(asked),
        num_classes=len(classes),
        num_draws=num_draws,
        top1={count: 100 * float(one.mean()) for count, one in hits.items()},
        deviation={count: 100 * float(one.mean(1).std(correction=0)) for count, one in hits.items()},
        interval={count: bootstrap_interval(one.mean(0), asked.sources, seed=seed) for count, one in hits.items()},
        per_class={count: per_class_accuracy(one.mean(0), asked.labels, names) for count, one in hits.items()},
        confusion={
            count: confusion_matrix(one.flatten(), asked.labels.repeat(num_draws), len(names))
            for count, one in predicted.items()
        },
        overlap=pair.overlap,
        features=[features.summary()],
    )


def draw_labeled(videos: VideoTable, classes: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    """Return the indices (C, count) of random videos of each class, from as many sources as there are."""
    rows = []
    for label in classes.tolist():
        members = rng.permutation((videos.labels == label).nonzero().flatten().numpy())
        seen: Counter[str] = Counter()
        turns = []  # how many videos of the same source come before
        for number in members.tolist():
            turns.append(seen[videos.sources[number]])
            seen[videos.sources[number]] += 1
        rows.append(members[np.argsort(turns, kind="stable")][:count])
    return torch.from_numpy(np.stack(rows))


def _predict(labeled: Tensor, unit: Tensor, queries: Tensor, labels: Tensor) -> Tensor:
    """Return the class (Q,) whose mean is nearest to each query."""
    means = F.normalize(unit[labeled].double().mean(1), dim=1)  # (C, D)
    return labels[labeled[:, 0]][(queries.double() @ means.T).argmax(1)]


def _check_shots(videos: VideoTable, classes: Tensor, shots: Sequence[int], gallery: str) -> None:
    counts = {int(label): int((videos.labels == label).sum()) for label in classes}
    smallest = min(counts, key=lambda label: counts[label])
    if not shots or min(shots) < 1 or max(shots) > counts[smallest]:
        raise ValueError(
            f"shots = {list(shots)}: must be 1 to {counts[smallest]}, the videos of class "
            f"{videos.class_names[smallest]!r} in the subset {gallery}"
        )
