"""Linear probe on features: how well does a linear classifier on the frozen encoder tell the classes apart?

`clean` fits logistic regression to its optimum; how strongly weights are penalized is chosen on a validation subset of
the training sources. `coclr` repeats the recipe of Han et al. (see `coclr_probe`), and the probe `compress` that of
MSF and CMSF for images (see `compress_probe`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable, split_fit_val
from covid_cmsf.evaluation.finetune.config import PRESETS
from covid_cmsf.evaluation.probes.logistic import Logistic, fit_logistic
from covid_cmsf.evaluation.results import Scores, compute_scores
from covid_cmsf.evaluation.retrieval import gallery_and_query_indices, shared_sources
from covid_cmsf.models import Classifier

# N videos, D feature, C classes


PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(2, -9, -1))  # 10 to 1e-4
EPSILON = 1e-5  # added to variances, as batch norm does
PROBES = ("protocol", "compress")


@dataclass(frozen=True)
class LinearResult:
    """The accuracy of a linear probe. Of protocol coclr it is the last epoch's; its authors print `best_on_test`.

    Example:
        >>> result = cc.evaluate_linear(cc.load_features("rgb.safetensors"))
        >>> 0 <= result.scores.top1 <= 100
        True
    """

    protocol: str
    gallery: str  # the subset that was learned from
    query: str  # the subset that was tested on
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
class TrainedProbe:
    """A trained probe's answers for the test subset, and how it came about."""

    probabilities: Tensor  # (N, C)
    details: dict[str, Any]


def evaluate_linear(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
    probe: str = "protocol",
) -> LinearResult:
    """Train a linear probe on `gallery` and return its accuracy and confusion matrix on `query`.

    Example:
        >>> result = cc.evaluate_linear(cc.load_features("rgb.safetensors"))
    """
    index_pair = gallery_and_query_indices(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    if probe not in PROBES:
        raise ValueError(f"unknown probe {probe!r}; choose from {', '.join(PROBES)}")
    trained = train_probe(features, *index_pair, val_fraction=val_fraction, seed=seed, penalties=penalties, probe=probe)
    return LinearResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        num_gallery=len(index_pair[0]),
        scores=compute_scores(trained.probabilities, features.videos.take(index_pair[1]), seed=seed),
        num_shared_sources=len(shared_sources(features.videos, *index_pair)),
        features=[features.summary()],
        probe=probe,
        **trained.details,
    )


def train_probe(
    features: Features,
    train_indices: Tensor,
    test_indices: Tensor,
    *,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
    probe: str = "protocol",
) -> TrainedProbe:
    """Learns on the rows `learn` by the features' protocol or by CompRess's; the answers are for the rows `test`."""
    rows, videos = features.features, features.videos
    num_classes = len(videos.class_names)
    if probe == "compress":
        return TrainedProbe(
            train_compress_probe(
                rows[train_indices], videos.labels[train_indices], rows[test_indices], num_classes, seed=seed
            ),
            {},
        )
    if features.protocol == "coclr":
        labels = videos.labels
        trained = train_coclr_probe(
            rows[train_indices], labels[train_indices], rows[test_indices], labels[test_indices], num_classes, seed=seed
        )
        return TrainedProbe(
            trained.probabilities, {"best_on_test": trained.best_on_test, "best_epoch": trained.best_epoch}
        )
    penalty, accuracy = choose_penalty(
        rows[train_indices], videos.take(train_indices), penalties, val_fraction=val_fraction, seed=seed
    )
    train_features, test_features = standardize(rows[train_indices], rows[train_indices], rows[test_indices])
    classifier = fit_logistic(train_features, videos.labels[train_indices], penalty)
    details = {"penalty": penalty, "val_accuracy": {f"{one:.4g}": value for one, value in accuracy.items()}}
    return TrainedProbe(classifier.probabilities(test_features, num_classes), details)


def choose_penalty(
    rows: Tensor, videos: VideoTable, penalties: Sequence[float], *, val_fraction: float, seed: int
) -> tuple[float, dict[float, float]]:
    """The penalty with the best accuracy on a validation subset of these videos' sources (of equals the strongest)."""
    fit, val = split_fit_val(videos, val_fraction=val_fraction, seed=seed)
    fit_features, val_features = standardize(rows[fit], rows[fit], rows[val])
    accuracy: dict[float, float] = {}
    classifier_so_far: Logistic | None = None
    for penalty in sorted(penalties, reverse=True):
        classifier_so_far = fit_logistic(fit_features, videos.labels[fit], penalty, init=classifier_so_far)
        predictions = classifier_so_far.probabilities(val_features, len(videos.class_names)).argmax(1)
        accuracy[penalty] = 100 * float((predictions == videos.labels[val]).double().mean())
    return max(accuracy, key=lambda penalty: (accuracy[penalty], penalty)), accuracy


def standardize(reference: Tensor, *sets: Tensor) -> list[Tensor]:
    """Each set minus the reference's mean, over its standard deviation, dimension by dimension, in float64."""
    mean = reference.double().mean(0)
    std = (reference.double().var(0, correction=0) + EPSILON).sqrt()
    return [(rows.double() - mean) / std for rows in sets]


# The linear probe of Han et al. (2020), `feature_linear_probe.py`, as their README runs it.
#
# Batch norm and a linear layer on stored features; SGD with momentum 0.9, lr 1.0 (a tenth of it from epochs 60
# and 80 on), weight decay 1e-3, batches of 1024, 100 epochs. Every 5 epochs they look at the test set, and the largest
# accuracy that they see is what they print. We give that number under a name that says so, and the last epoch's.

# N videos, D feature, C classes


COCLR_LR, COCLR_MOMENTUM, COCLR_WEIGHT_DECAY = 1.0, 0.9, 1e-3
COCLR_BATCH_SIZE, COCLR_EPOCHS, COCLR_MILESTONES, COCLR_TEST_INTERVAL = 1024, 100, (60, 80), 5


@dataclass(frozen=True)
class CoclrProbeResult:
    """`probabilities` (N, C) are the last epoch's answers for the test rows."""

    probabilities: Tensor
    best_on_test: float
    best_epoch: int


def train_coclr_probe(
    rows: Tensor, labels: Tensor, test_rows: Tensor, test_labels: Tensor, num_classes: int, *, seed: int = 0
) -> CoclrProbeResult:
    """Learns on (N, D) rows as they are: no centering, no scaling but the batch norm's."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Classifier(rows.shape[1], num_classes, batch_norm=True)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=COCLR_LR, momentum=COCLR_MOMENTUM, weight_decay=COCLR_WEIGHT_DECAY
    )
    best, best_epoch = 0.0, 0
    for epoch in range(COCLR_EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = COCLR_LR * 0.1 ** sum(epoch >= milestone for milestone in COCLR_MILESTONES)
        for batch in epoch_batches(len(rows), generator):
            loss = F.cross_entropy(network.train()(rows[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % COCLR_TEST_INTERVAL == 0:
            correct = predict_probabilities(network, test_rows).argmax(1) == test_labels
            accuracy = 100 * float(correct.double().mean())
            if accuracy >= best:
                best, best_epoch = accuracy, epoch
    return CoclrProbeResult(predict_probabilities(network, test_rows), best, best_epoch)


def epoch_batches(num_rows: int, generator: torch.Generator) -> list[Tensor]:
    """All rows in a random order, in batches; a last row by itself joins the batch before, for batch norm's sake."""
    batches = list(torch.randperm(num_rows, generator=generator).split(COCLR_BATCH_SIZE))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


@torch.no_grad()
def predict_probabilities(network: nn.Module, rows: Tensor) -> Tensor:
    """(N, D) -> (N, C) probabilities, with the batch norm's running statistics."""
    logits: Tensor = network.eval()(rows)
    return logits.softmax(1)


# The linear probe of CompRess (Koohpayegani et al. 2020), by which MSF and CMSF report ImageNet accuracy.
#
# Unit-length features, standardized by fixed means and unbiased variances of the training set, then one linear layer:
# SGD with momentum 0.9, learning rate 0.01 (a tenth of it from epochs 15 and 30 on), weight decay 1e-4, batches of 256,
# 40 epochs. On stored features here; `evaluate linear CHECKPOINT CLIPS --probe compress` learns from augmented images.

# N images, D feature, C classes


COMPRESS_MOMENTUM = 0.9


def train_compress_probe(rows: Tensor, labels: Tensor, test_rows: Tensor, num_classes: int, *, seed: int = 0) -> Tensor:
    """(N, C) probabilities for the test rows after the last epoch. Rows (N, D) are scaled to unit length here."""
    config = PRESETS["compress"]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Classifier(rows.shape[1], num_classes, normalize=True, standardize=True)
    network.set_statistics_(*feature_statistics(rows))
    optimizer = torch.optim.SGD(
        network.parameters(), lr=config.lr, momentum=COMPRESS_MOMENTUM, weight_decay=config.weight_decay
    )
    for epoch in range(config.epochs):
        for group in optimizer.param_groups:
            group["lr"] = config.lr_at(epoch)
        for batch in torch.randperm(len(rows), generator=generator).split(config.batch_size):
            loss = F.cross_entropy(network(rows[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        logits: Tensor = network(test_rows)
        return logits.softmax(1)


def feature_statistics(rows: Tensor) -> tuple[Tensor, Tensor]:
    """(D,) mean and (D,) unbiased variance of the rows (N, D) after each is scaled to unit length."""
    unit = F.normalize(rows.double(), dim=1)
    if len(unit) < 2:
        raise ValueError("one row has no variance: the probe needs at least two to learn from")
    return unit.mean(0).float(), unit.var(0).float()
