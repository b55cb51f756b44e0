"""Multinomial logistic regression by torch's LBFGS, stopped where the setting says: how far it gets is searched, too.

    minimize  mean cross entropy + weight_decay / 2 * |W|^2         the bias is free

Weights start at 0, so there is no chance in it. As the paper names no line search there is none: `lr` is the length of
every step. At its optimum this is scikit-learn's LogisticRegression with C = 1 / (weight_decay * N).
"""

# N rows, D feature, C classes

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.transfer.rows import LabeledRows

MAX_ITER, HISTORY_SIZE = 20, 10  # of one step; the paper's


class NotFiniteError(RuntimeError):
    """The loss left the finite numbers: this setting is of no use."""


@dataclass(frozen=True)
class Setting:
    """What is searched. `iterations` are calls of `step`, of up to 20 inner iterations each."""

    iterations: int
    lr: float
    weight_decay: float


@dataclass(frozen=True)
class Classifier:
    """`num_steps` of the setting's iterations were made: fewer when the last ones would have changed nothing."""

    weight: Tensor  # (C, D)
    bias: Tensor  # (C,)
    num_steps: int

    def answers(self, rows: Tensor) -> Tensor:
        """(N, D) -> (N,) labels on the CPU; of equal scores the smaller label."""
        scores = F.linear(rows.to(self.weight), self.weight, self.bias)
        return (scores == scores.amax(1, keepdim=True)).int().argmax(1).cpu()


def fit(learned: LabeledRows, setting: Setting, *, num_classes: int, device: torch.device | str = "cpu") -> Classifier:
    """Trains on all rows at once, in their precision; NotFiniteError when it diverges."""
    rows, labels = learned.rows.to(device), learned.labels.to(device)
    weight = torch.zeros(num_classes, rows.shape[1], dtype=rows.dtype, device=device, requires_grad=True)
    bias = torch.zeros(num_classes, dtype=rows.dtype, device=device, requires_grad=True)
    optimizer = torch.optim.LBFGS([weight, bias], lr=setting.lr, max_iter=MAX_ITER, history_size=HISTORY_SIZE)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(F.linear(rows, weight, bias), labels)
        loss = loss + setting.weight_decay / 2 * weight.square().sum()
        loss.backward()
        return loss

    steps = 0
    for _ in range(setting.iterations):
        before = weight.detach().clone(), bias.detach().clone()
        loss = optimizer.step(closure)
        steps += 1
        if not all(bool(torch.isfinite(value).all()) for value in (loss, weight, bias)):
            raise NotFiniteError(f"not finite after {steps} steps: {setting}")
        # LBFGS moves nothing where the gradient is 0, and what has not moved once never will: the next step
        # would see the same loss, gradient and history.
        if torch.equal(before[0], weight) and torch.equal(before[1], bias):
            break
    return Classifier(weight.detach(), bias.detach(), steps)
