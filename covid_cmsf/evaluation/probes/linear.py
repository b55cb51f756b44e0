"""Linear probes: accuracy of a linear classifier on frozen features.

Protocol `clean` fits logistic regression to its optimum, with a penalty that is selected on a validation subset of the
training sources. Protocol `coclr` repeats the probe of Han et al. (`train_coclr_probe`). The probe `compress` is that
of MSF and CMSF for images (`train_compress_probe`).
"""

# N videos or images, D feature, C classes

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from covid_cmsf.evaluation.chunks import map_rows, mean_and_variance
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable, split_fit_val
from covid_cmsf.evaluation.finetune.config import PRESETS
from covid_cmsf.evaluation.overlap import Overlap
from covid_cmsf.evaluation.probes.logistic import Logistic, fit_logistic
from covid_cmsf.evaluation.results import Scores, VideoHits, compute_scores, top1_hits
from covid_cmsf.evaluation.retrieval import select_subsets
from covid_cmsf.models import Classifier

PENALTIES = tuple(10 ** (exponent / 2) for exponent in range(2, -9, -1))  # 10 to 1e-4
EPSILON = 1e-5  # added to variances, as in batch norm
MAX_DOUBLES = 1 << 27  # 1 GB: 262,144 videos of 512 values
PROBES = ("protocol", "compress")


@dataclass(frozen=True)
class LinearResult:
    """Scores of the probe. Protocol coclr: of the last epoch; its authors report `best_on_test`.

    Example:
        >>> result = cc.evaluate_linear(cc.load_features("rgb.safetensors"))
        >>> 0 <= result.scores.top1 <= 100
        True
    """

    protocol: str
    gallery: str  # training subset
    query: str  # test subset
    num_gallery: int
    scores: Scores
    overlap: Overlap  # of gallery and query
    penalty: float | None = None
    val_accuracy: dict[str, float] = field(default_factory=dict)  # {penalty: percent}
    best_on_test: float | None = None  # largest test accuracy of any epoch: selected on the test set
    best_epoch: int | None = None
    probe: str = "protocol"  # protocol or compress
    features: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class TrainedProbe:
    """Test probabilities of a trained probe; `details` are fields of `LinearResult`."""

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
    """Train a probe on the subset `gallery` and test it on `query`.

    Example:
        >>> result = cc.evaluate_linear(cc.load_features("rgb.safetensors"))
    """
    return measure_linear(
        features,
        gallery=gallery,
        query=query,
        allow_shared_sources=allow_shared_sources,
        val_fraction=val_fraction,
        seed=seed,
        penalties=penalties,
        probe=probe,
    )[0]


def measure_linear(
    features: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
    penalties: Sequence[float] = PENALTIES,
    probe: str = "protocol",
) -> tuple[LinearResult, VideoHits]:
    """Return the scores of a probe, and which videos of `query` it predicts correctly."""
    pair = select_subsets(
        features.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    if probe not in PROBES:
        raise ValueError(f"unknown probe {probe!r}; choose from {', '.join(PROBES)}")
    trained = train_probe(
        features, pair.gallery, pair.query, val_fraction=val_fraction, seed=seed, penalties=penalties, probe=probe
    )
    videos = features.videos.take(pair.query)
    result = LinearResult(
        protocol=features.protocol,
        gallery=gallery,
        query=query,
        num_gallery=len(pair.gallery),
        scores=compute_scores(trained.probabilities, videos, seed=seed),
        overlap=pair.overlap,
        features=[features.summary()],
        probe=probe,
        **trained.details,
    )
    return result, top1_hits(trained.probabilities, videos)


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
    """Train on `train_indices` by the protocol of the features or by CompRess; predict `test_indices`."""
    values, videos = features.features, features.videos
    num_classes = len(videos.class_names)
    if probe == "compress":
        probabilities = train_compress_probe(
            values[train_indices], videos.labels[train_indices], values[test_indices], num_classes, seed=seed
        )
        return TrainedProbe(probabilities, {})
    if features.protocol == "coclr":
        labels = videos.labels
        trained = train_coclr_probe(
            values[train_indices],
            labels[train_indices],
            values[test_indices],
            labels[test_indices],
            num_classes,
            seed=seed,
        )
        return TrainedProbe(
            trained.probabilities, {"best_on_test": trained.best_on_test, "best_epoch": trained.best_epoch}
        )
    penalty, accuracy = choose_penalty(
        values[train_indices], videos.take(train_indices), penalties, val_fraction=val_fraction, seed=seed
    )
    train_features = values[train_indices]
    test_features, train_features = standardize(train_features, values[test_indices], train_features)
    classifier = fit_logistic(train_features, videos.labels[train_indices], penalty)
    details = {"penalty": penalty, "val_accuracy": {f"{one:.4g}": value for one, value in accuracy.items()}}
    return TrainedProbe(classifier.probabilities(test_features, num_classes), details)


def choose_penalty(
    features: Tensor, videos: VideoTable, penalties: Sequence[float], *, val_fraction: float, seed: int
) -> tuple[float, dict[float, float]]:
    """Return the penalty with the best validation accuracy (ties: the largest), and {penalty: percent}.

    The validation subset is cut from the sources of `videos`; `features` is (N, D).
    """
    fit, val = split_fit_val(videos, val_fraction=val_fraction, seed=seed)
    fit_features = features[fit]
    val_features, fit_features = standardize(fit_features, features[val], fit_features)
    accuracy: dict[float, float] = {}
    classifier: Logistic | None = None
    for penalty in sorted(penalties, reverse=True):
        classifier = fit_logistic(fit_features, videos.labels[fit], penalty, init=classifier)  # warm start
        correct = classifier.predict(val_features) == videos.labels[val]
        accuracy[penalty] = 100 * float(correct.double().mean())
    return max(accuracy, key=lambda penalty: (accuracy[penalty], penalty)), accuracy


def standardize(reference: Tensor, *sets: Tensor) -> list[Tensor]:
    """Standardize each (N, D) tensor by the mean and standard deviation of `reference`, in float64.

    A tensor of more than `MAX_DOUBLES` values is returned in fp32, to save memory and time.
    """
    mean, variance = mean_and_variance(reference)
    std = (variance + EPSILON).sqrt()
    return [
        map_rows(
            values,
            lambda rows: (rows - mean) / std,
            dtype=torch.float64 if values.numel() <= MAX_DOUBLES else torch.float32,
        )
        for values in sets
    ]


# The linear probe of Han et al. (2020), `feature_linear_probe.py`, with the options of their README: batch norm and a
# linear layer on stored features; SGD with momentum 0.9, lr 1.0 (divided by 10 at epochs 60 and 80), weight decay 1e-3,
# batch size 1024, 100 epochs. They test every 5 epochs and report the largest accuracy: here that is `best_on_test`.

COCLR_LR, COCLR_MOMENTUM, COCLR_WEIGHT_DECAY = 1.0, 0.9, 1e-3
COCLR_BATCH_SIZE, COCLR_EPOCHS, COCLR_MILESTONES, COCLR_TEST_INTERVAL = 1024, 100, (60, 80), 5


@dataclass(frozen=True)
class CoclrProbeResult:
    """Test probabilities (N, C) of the last epoch, and the best test accuracy in percent with its epoch."""

    probabilities: Tensor
    best_on_test: float
    best_epoch: int


def train_coclr_probe(
    features: Tensor, labels: Tensor, test_features: Tensor, test_labels: Tensor, num_classes: int, *, seed: int = 0
) -> CoclrProbeResult:
    """Train on (N, D) features without centering; batch norm is the only normalization."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Classifier(features.shape[1], num_classes, batch_norm=True)
    optimizer = torch.optim.SGD(
        network.parameters(), lr=COCLR_LR, momentum=COCLR_MOMENTUM, weight_decay=COCLR_WEIGHT_DECAY
    )
    best, best_epoch = 0.0, 0
    for epoch in range(COCLR_EPOCHS):
        for group in optimizer.param_groups:
            group["lr"] = COCLR_LR * 0.1 ** sum(epoch >= milestone for milestone in COCLR_MILESTONES)
        for batch in epoch_batches(len(features), generator):
            loss = F.cross_entropy(network.train()(features[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if epoch % COCLR_TEST_INTERVAL == 0:
            correct = predict_probabilities(network, test_features).argmax(1) == test_labels
            accuracy = 100 * float(correct.double().mean())
            if accuracy >= best:
                best, best_epoch = accuracy, epoch
    return CoclrProbeResult(predict_probabilities(network, test_features), best, best_epoch)


def epoch_batches(num_samples: int, generator: torch.Generator) -> list[Tensor]:
    """Return shuffled batches of indices; a last batch of one joins the one before, because of batch norm."""
    batches = list(torch.randperm(num_samples, generator=generator).split(COCLR_BATCH_SIZE))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


@torch.no_grad()
def predict_probabilities(network: nn.Module, features: Tensor) -> Tensor:
    """Map (N, D) features to (N, C) probabilities in eval mode."""
    probabilities: Tensor = network.eval()(features).softmax(1)
    return probabilities


# The linear probe of CompRess (Koohpayegani et al. 2020), with which MSF and CMSF report ImageNet accuracy: unit-length
# features, standardized by fixed means and unbiased variances of the training set, then one linear layer; SGD with
# momentum 0.9, lr 0.01 (divided by 10 at epochs 15 and 30), weight decay 1e-4, batch size 256, 40 epochs. This one uses
# stored features; `evaluate linear CHECKPOINT CLIPS --probe compress` trains on augmented images.

COMPRESS_MOMENTUM = 0.9


def train_compress_probe(
    features: Tensor, labels: Tensor, test_features: Tensor, num_classes: int, *, seed: int = 0
) -> Tensor:
    """Return the test probabilities (N, C) of the last epoch. Features (N, D) are scaled to unit length here."""
    config = PRESETS["compress"]
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = Classifier(features.shape[1], num_classes, normalize=True, standardize=True)
    network.set_statistics_(*feature_statistics(features))
    optimizer = torch.optim.SGD(
        network.parameters(), lr=config.lr, momentum=COMPRESS_MOMENTUM, weight_decay=config.weight_decay
    )
    for epoch in range(config.epochs):
        for group in optimizer.param_groups:
            group["lr"] = config.lr_at(epoch)
        for batch in torch.randperm(len(features), generator=generator).split(config.batch_size):
            loss = F.cross_entropy(network(features[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return predict_probabilities(network, test_features)


def feature_statistics(features: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean (D,) and unbiased variance (D,) of (N, D) features after scaling each to unit length."""
    if len(features) < 2:
        raise ValueError(f"{len(features)} training samples: a variance needs at least two")
    mean, variance = mean_and_variance(features, correction=1, transform=lambda rows: F.normalize(rows, dim=1))
    return mean.float(), variance.float()
