"""Logistic regression of the transfer benchmark: normalization of features, LBFGS, and the metrics.

    minimize  mean cross entropy + weight_decay / 2 * |W|^2         (no penalty on the bias)

by torch's LBFGS, stopped after a number of iterations, which is searched too. Weights start at 0, so nothing is random.
The paper names no line search, so there is none: `lr` is the length of every step. The optimum is that of
scikit-learn's LogisticRegression with C = 1 / (weight_decay * N).
"""

# N images, W windows, D feature, C classes

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import subset_indices
from covid_cmsf.evaluation.probes.linear import standardize
from covid_cmsf.evaluation.transfer.datasets import METRICS, SUBSETS, Metric

Normalization = Literal["none", "unit", "standardize"]


@dataclass(frozen=True)
class LabeledFeatures:
    """(N, D) features and (N,) labels."""

    features: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.features.dim() != 2 or self.labels.shape != self.features.shape[:1]:
            raise ValueError(
                f"features {tuple(self.features.shape)} and labels {tuple(self.labels.shape)} are not (N, D) and (N,)"
            )
        if len(self.features) == 0:
            raise ValueError("there are no features")

    def __len__(self) -> int:
        return len(self.features)

    def concat(self, other: "LabeledFeatures") -> "LabeledFeatures":
        """Concatenate with `other`."""
        return LabeledFeatures(torch.cat([self.features, other.features]), torch.cat([self.labels, other.labels]))


def subset_features(features: Features) -> dict[str, LabeledFeatures]:
    """Return train, val and test of a features file; features are the mean over an image's windows, not scaled."""
    if missing := [subset for subset in SUBSETS if subset not in features.videos.subsets]:
        present = ", ".join(sorted(set(features.videos.subsets)))
        raise ValueError(
            f"transfer needs the subsets {', '.join(SUBSETS)}; {', '.join(missing)} is missing, present: {present}"
        )
    raw = mean_window_features(features)
    indices = {subset: subset_indices(features.videos, subset) for subset in SUBSETS}
    return {subset: LabeledFeatures(raw[index], features.videos.labels[index]) for subset, index in indices.items()}


def mean_window_features(features: Features) -> Tensor:
    """Average the window features (W, D), not scaled, per image or video: (N, D) float32."""
    sums = torch.zeros(len(features.videos), features.windows.shape[1], dtype=torch.float64)
    sums.index_add_(0, features.window_videos, features.windows.double())
    counts = features.window_videos.bincount(minlength=len(features.videos)).clamp(min=1)
    return (sums / counts[:, None]).float()


def check_normalization(mode: str) -> None:
    """Raise ValueError for an unknown normalization."""
    if mode not in get_args(Normalization):
        raise ValueError(f"unknown normalization {mode!r}; choose from {', '.join(get_args(Normalization))}")


def normalize_features(
    mode: str, train: LabeledFeatures, other: LabeledFeatures
) -> tuple[LabeledFeatures, LabeledFeatures]:
    """Normalize both sets with the statistics of `train`.

    none: unchanged. unit: scale every feature to unit length. standardize: unit, then standardize every dimension, as
    in the linear evaluation of the CMSF code.
    """
    check_normalization(mode)
    if mode == "none":
        return train, other
    first, second = (F.normalize(one.features.double(), dim=1) for one in (train, other))
    if mode == "standardize":
        first, second = standardize(first, first, second)
    dtype = train.features.dtype
    return LabeledFeatures(first.to(dtype), train.labels), LabeledFeatures(second.to(dtype), other.labels)


def accuracy(predictions: Tensor, labels: Tensor, metric: Metric) -> float:
    """Return the percentage of correct (N,) predictions; `mean_per_class` averages over the classes in `labels`."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    correct = (predictions == labels).double()
    if metric == "top1":
        return 100 * float(correct.mean())
    counts = labels.bincount().double()  # (C,)
    hits = labels.bincount(weights=correct)
    return 100 * float((hits[counts > 0] / counts[counts > 0]).mean())


MAX_ITER, HISTORY_SIZE = 20, 10  # per call of `step`; the paper's


class NotFiniteError(RuntimeError):
    """The training diverged: loss or weights are not finite."""


@dataclass(frozen=True)
class Hyperparameters:
    """Searched hyper-parameters. `iterations` are calls of `step`, of up to 20 inner iterations each."""

    iterations: int
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class LinearClassifier:
    """A fitted classifier; `num_steps` is smaller than `iterations` if later steps would have changed nothing."""

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,)
    num_steps: int

    def predict(self, features: Tensor) -> Tensor:
        """Map (N, D) features to (N,) labels on the CPU; ties go to the smaller label."""
        scores = F.linear(features.to(self.weight), self.weight, self.bias)
        return (scores == scores.amax(1, keepdim=True)).int().argmax(1).cpu()


def fit_classifier(
    train: LabeledFeatures, hyperparameters: Hyperparameters, *, num_classes: int, device: torch.device | str = "cpu"
) -> LinearClassifier:
    """Fit full-batch, in the precision of the features; NotFiniteError if it diverges."""
    features, labels = train.features.to(device), train.labels.to(device)
    weight = torch.zeros(num_classes, features.shape[1], dtype=features.dtype, device=device, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=features.dtype, device=device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], lr=hyperparameters.lr, max_iter=MAX_ITER, history_size=HISTORY_SIZE)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(features, weight, bias), labels)
        loss = loss + hyperparameters.weight_decay / 2 * weight.square().sum()
        loss.backward()
        return loss

    steps = 0
    for _ in range(hyperparameters.iterations):
        before = weight.detach().clone(), bias.detach().clone()
        loss = optimizer.step(closure)
        steps += 1
        if not all(bool(torch.isfinite(value).all()) for value in (loss, weight, bias)):
            raise NotFiniteError(f"not finite after {steps} steps: {hyperparameters}")
        # LBFGS changes nothing where the gradient is 0, and then never will: the next step would have the same loss,
        # gradient and history.
        if torch.equal(before[0], weight) and torch.equal(before[1], bias):
            break
    return LinearClassifier(weight.detach(), bias.detach(), steps)
