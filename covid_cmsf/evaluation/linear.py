"""Linear probe on features: how well does a linear classifier on the frozen encoder tell the classes apart?

`clean` fits logistic regression to its optimum; how strongly weights are penalized is chosen on a validation part of
the training sources. `coclr` repeats the recipe of Han et al. (see `coclr_probe`), and the probe `compress` that of
MSF and CMSF for images (see `compress_probe`).
"""

# N videos, D feature, C classes

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from covid_cmsf.evaluation.coclr_probe import train_coclr_probe
from covid_cmsf.evaluation.compress_probe import train_compress_probe
from covid_cmsf.evaluation.features import Features
from covid_cmsf.evaluation.logistic import Logistic, fit_logistic
from covid_cmsf.evaluation.parts import VAL_SHARE, fit_and_val
from covid_cmsf.evaluation.retrieval import parts_for_retrieval, shared_sources
from covid_cmsf.evaluation.scores import Scores, score
from covid_cmsf.evaluation.videos import Videos

PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(2, -9, -1))  # 10 to 1e-4
EPSILON = 1e-5  # added to variances, as batch norm does
PROBES = ("protocol", "compress")


@dataclass(frozen=True)
class LinearResult:
    """`scores` is the result. Of protocol coclr it is the last epoch's; its authors print `best_on_test`."""

    protocol: str
    gallery: str  # the part that was learned from
    query: str  # the part that was tested on
    num_gallery: int
    scores: Scores
    penalty: float | None = None
    val_accuracy: dict[str, float] = field(default_factory=dict)  # of each penalty
    best_on_test: float | None = None  # largest test accuracy of any epoch: chosen by looking at the test set
    best_epoch: int | None = None
    num_shared_sources: int = 0
    probe: str = "protocol"  # that of the protocol, or compress
    features: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Probe:
    """A trained probe's answers for the test part, and how it came about."""

    probabilities: Tensor  # (N, C)
    facts: dict[str, Any]


def evaluate_linear(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    allow_shared_sources: bool = False,
    val_share: float = VAL_SHARE,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
    probe: str = "protocol",
) -> LinearResult:
    """Top-1, top-5, by class and the confusion matrix of a probe that learned on `gallery`, tested on `query`."""
    pair = parts_for_retrieval(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_share=val_share, seed=seed
    )
    if probe not in PROBES:
        raise ValueError(f"unknown probe {probe!r}; choose from {', '.join(PROBES)}")
    trained = train_probe(features, *pair, val_share=val_share, seed=seed, penalties=penalties, probe=probe)
    return LinearResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        num_gallery=len(pair[0]),
        scores=score(trained.probabilities, features.videos.take(pair[1]), seed=seed),
        num_shared_sources=len(shared_sources(features.videos, *pair)),
        features=[features.summary()],
        probe=probe,
        **trained.facts,
    )


def train_probe(
    features: Features,
    learn: Tensor,
    test: Tensor,
    *,
    val_share: float = VAL_SHARE,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
    probe: str = "protocol",
) -> Probe:
    """Learns on the rows `learn` by the features' protocol or by CompRess's; the answers are for the rows `test`."""
    rows, videos = features.features, features.videos
    num_classes = len(videos.class_names)
    if probe == "compress":
        return Probe(train_compress_probe(rows[learn], videos.labels[learn], rows[test], num_classes, seed=seed), {})
    if features.protocol == "coclr":
        labels = videos.labels
        trained = train_coclr_probe(rows[learn], labels[learn], rows[test], labels[test], num_classes, seed=seed)
        return Probe(trained.probabilities, {"best_on_test": trained.best_on_test, "best_epoch": trained.best_epoch})
    penalty, accuracy = choose_penalty(rows[learn], videos.take(learn), penalties, val_share=val_share, seed=seed)
    known, asked = standardized(rows[learn], rows[learn], rows[test])
    classifier = fit_logistic(known, videos.labels[learn], penalty)
    facts = {"penalty": penalty, "val_accuracy": {f"{one:.4g}": value for one, value in accuracy.items()}}
    return Probe(classifier.probabilities(asked, num_classes), facts)


def choose_penalty(
    rows: Tensor, videos: Videos, penalties: Sequence[float], *, val_share: float, seed: int
) -> tuple[float, dict[float, float]]:
    """The penalty with the best accuracy on a validation part of these videos' sources (of equals the strongest)."""
    fit, val = fit_and_val(videos, val_share=val_share, seed=seed)
    known, asked = standardized(rows[fit], rows[fit], rows[val])
    accuracy: dict[float, float] = {}
    last: Logistic | None = None
    for penalty in sorted(penalties, reverse=True):
        last = fit_logistic(known, videos.labels[fit], penalty, start=last)
        answers = last.probabilities(asked, len(videos.class_names)).argmax(1)
        accuracy[penalty] = 100 * float((answers == videos.labels[val]).double().mean())
    return max(accuracy, key=lambda penalty: (accuracy[penalty], penalty)), accuracy


def standardized(reference: Tensor, *sets: Tensor) -> list[Tensor]:
    """Each set minus the reference's mean, over its standard deviation, dimension by dimension, in float64."""
    mean = reference.double().mean(0)
    deviation = (reference.double().var(0, correction=0) + EPSILON).sqrt()
    return [(rows.double() - mean) / deviation for rows in sets]
