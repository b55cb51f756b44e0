"""Features as a classifier gets them: rows and labels of a subset, normalized in one of three ways."""

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import subset_indices
from covid_cmsf.evaluation.probes.linear import standardize
from covid_cmsf.evaluation.transfer.datasets import METRICS, SUBSETS, Metric

# N images, W windows, D feature


Normalization = Literal["none", "unit", "standardize"]


@dataclass(frozen=True)
class LabeledFeatures:
    """(N, D) features and (N,) labels."""

    features: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.features.dim() != 2 or self.labels.shape != self.features.shape[:1]:
            raise ValueError(
                f"rows {tuple(self.features.shape)} and labels {tuple(self.labels.shape)} differ from (N, D) and (N,)"
            )
        if len(self.features) == 0:
            raise ValueError("there are no rows")

    def __len__(self) -> int:
        return len(self.features)

    def concat(self, other: "LabeledFeatures") -> "LabeledFeatures":
        """Both, one after the other."""
        return LabeledFeatures(torch.cat([self.features, other.features]), torch.cat([self.labels, other.labels]))


def subset_features(features: Features) -> dict[str, LabeledFeatures]:
    """train, val and test of a features file, as the backbone gives them: the mean over an image's windows."""
    if missing := [subset for subset in SUBSETS if subset not in features.videos.subsets]:
        present = ", ".join(sorted(set(features.videos.subsets)))
        raise ValueError(
            f"transfer needs the subsets {', '.join(SUBSETS)}; {', '.join(missing)} is not among: {present}"
        )
    raw = mean_window_features(features)
    chosen = {subset: subset_indices(features.videos, subset) for subset in SUBSETS}
    return {subset: LabeledFeatures(raw[rows], features.videos.labels[rows]) for subset, rows in chosen.items()}


def mean_window_features(features: Features) -> Tensor:
    """(N, D) float32: the windows' features (W, D), not scaled, averaged over each image or video."""
    sums = torch.zeros(len(features.videos), features.windows.shape[1], dtype=torch.float64)
    sums.index_add_(0, features.window_videos, features.windows.double())
    counts = features.window_videos.bincount(minlength=len(features.videos)).clamp(min=1)
    return (sums / counts[:, None]).float()


def check_normalization(mode: str) -> None:
    """ValueError unless there is such a way."""
    if mode not in get_args(Normalization):
        raise ValueError(f"unknown way to normalize {mode!r}; choose from {', '.join(get_args(Normalization))}")


def normalize_features(
    mode: str, train: LabeledFeatures, other: LabeledFeatures
) -> tuple[LabeledFeatures, LabeledFeatures]:
    """Both sets; whatever is measured (mean and deviation) is measured on the rows that are learned from.

    none: as the backbone gives them. unit: every row has length 1. standardize: unit, then every dimension minus its
    mean over its deviation, as the linear evaluation of the CMSF code does.
    """
    check_normalization(mode)
    if mode == "none":
        return train, other
    first, second = (F.normalize(one.features.double(), dim=1) for one in (train, other))
    if mode == "standardize":
        first, second = standardize(first, first, second)
    dtype = train.features.dtype
    return LabeledFeatures(first.to(dtype), train.labels), LabeledFeatures(second.to(dtype), other.labels)


# Share of right answers: of all images (top-1), or of each class and then averaged.

# N images, C classes


def accuracy(predictions: Tensor, labels: Tensor, metric: Metric) -> float:
    """Percent for (N,) answers and labels. The mean over classes is over those that the labels have."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    correct = (predictions == labels).double()
    if metric == "top1":
        return 100 * float(correct.mean())
    counts = labels.bincount().double()  # (C,)
    hits = labels.bincount(weights=correct)
    return 100 * float((hits[counts > 0] / counts[counts > 0]).mean())


# Multinomial logistic regression by torch's LBFGS, stopped where the setting says: how far it gets is searched, too.
#
#     minimize  mean cross entropy + weight_decay / 2 * |W|^2         the bias is free
#
# Weights start at 0: nothing is random. As the paper names no line search there is none: `lr` is the length of
# every step. At its optimum this is scikit-learn's LogisticRegression with C = 1 / (weight_decay * N).

# N rows, D feature, C classes


MAX_ITER, HISTORY_SIZE = 20, 10  # of one step; the paper's


class NotFiniteError(RuntimeError):
    """The loss left the finite numbers: this setting is of no use."""


@dataclass(frozen=True)
class Hyperparameters:
    """What is searched. `iterations` are calls of `step`, of up to 20 inner iterations each."""

    iterations: int
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class LinearClassifier:
    """`num_steps` of the setting's iterations were made: fewer when the last ones would have changed nothing."""

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,)
    num_steps: int

    def predict(self, rows: Tensor) -> Tensor:
        """(N, D) -> (N,) labels on the CPU; of equal scores the smaller label."""
        scores = F.linear(rows.to(self.weight), self.weight, self.bias)
        return (scores == scores.amax(1, keepdim=True)).int().argmax(1).cpu()


def fit_classifier(
    train: LabeledFeatures, hyperparameters: Hyperparameters, *, num_classes: int, device: torch.device | str = "cpu"
) -> LinearClassifier:
    """Trains on all rows at once, in their precision; NotFiniteError when it diverges."""
    rows, labels = train.features.to(device), train.labels.to(device)
    weight = torch.zeros(num_classes, rows.shape[1], dtype=rows.dtype, device=device, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=rows.dtype, device=device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], lr=hyperparameters.lr, max_iter=MAX_ITER, history_size=HISTORY_SIZE)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(rows, weight, bias), labels)
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
        # LBFGS moves nothing where the gradient is 0, and what has not moved once never will: the next step
        # would see the same loss, gradient and history.
        if torch.equal(before[0], weight) and torch.equal(before[1], bias):
            break
    return LinearClassifier(weight.detach(), bias.detach(), steps)
