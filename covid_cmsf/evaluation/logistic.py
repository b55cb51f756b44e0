"""Multinomial logistic regression, fitted to the optimum by Newton steps in float64: no chance, no learning rate.

    minimize  mean cross entropy + penalty / 2 * |W|^2         the bias is free

This is scikit-learn's LogisticRegression with C = 1 / (penalty * N), of two classes with twice that C.
"""

# N rows, D feature, C classes

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 1e-7  # largest entry of the gradient at the end
MAX_STEPS = 200
MAX_CONJUGATES = 500  # for one step


@dataclass(frozen=True)
class Logistic:
    """A fitted classifier. Classes that were not seen get probability 0."""

    weight: Tensor  # (C seen, D)
    bias: Tensor  # (C seen,)
    classes: Tensor  # (C seen,) labels

    def probabilities(self, rows: Tensor, num_classes: int) -> Tensor:
        """(N, D) -> (N, num_classes), float64."""
        seen = F.linear(rows.double(), self.weight, self.bias).softmax(1)
        return torch.zeros(len(rows), num_classes, dtype=torch.float64).index_copy_(1, self.classes, seen)


def fit_logistic(rows: Tensor, labels: Tensor, penalty: float, *, start: Logistic | None = None) -> Logistic:
    """The optimum for (N, D) rows; `start` (a fit to the same classes) only saves time. RuntimeError without one."""
    if not penalty > 0:
        raise ValueError(f"the penalty must be above 0, not {penalty}")
    classes, targets = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError("all videos to learn from have one label; a classifier needs two classes at least")
    # Along the principal axes the loss curves as the rows vary, so each axis can be given a unit of its own. The
    # penalty does not notice a rotation, and the free bias takes up the mean.
    rows = rows.double()
    middle = rows.mean(0)
    variances, axes = torch.linalg.eigh((rows - middle).T @ (rows - middle) / len(rows))  # (D,), (D, D)
    values = torch.zeros(len(classes), rows.shape[1] + 1, dtype=torch.float64)  # weight and bias
    if start is not None:
        assert torch.equal(start.classes, classes)
        values = torch.cat([start.weight @ axes, (start.bias + start.weight @ middle)[:, None]], dim=1)
    values = _minimized(values, (rows - middle) @ axes, variances.clamp(min=0), targets, penalty)
    weight = values[:, :-1] @ axes.T
    return Logistic(weight, values[:, -1] - weight @ middle, classes)


def _minimized(start: Tensor, rows: Tensor, variances: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """(C, D + 1) weights and biases at which the gradient vanishes, begun from `start`: damped Newton steps."""
    one_hot = F.one_hot(targets, len(start)).double()
    curvature = torch.cat([variances / len(start) + penalty, torch.ones(1, dtype=torch.float64) / len(start)])
    unit = curvature.rsqrt()

    def measured(values: Tensor) -> tuple[float, Tensor, Tensor]:
        """Loss, gradient, and probabilities (N, C)."""
        weight, bias = (values * unit).tensor_split([-1], dim=1)
        logarithms = F.linear(rows, weight, bias[:, 0]).log_softmax(1)
        chances = logarithms.exp()
        errors = (chances - one_hot) / len(rows)
        gradient = torch.cat([errors.T @ rows + penalty * weight, errors.sum(0)[:, None]], dim=1) * unit
        loss = -(one_hot * logarithms).sum() / len(rows) + penalty / 2 * weight.square().sum()
        return float(loss), gradient, chances

    values = start / unit
    loss, gradient, chances = measured(values)
    for _ in range(MAX_STEPS):
        if float(gradient.abs().max()) <= TOLERANCE:
            return values * unit
        step = _newton_step(gradient, chances, rows, penalty, unit)
        expected = float((gradient * step).sum())
        length = 1.0
        while True:
            after = measured(values - length * step)
            # At the optimum losses differ by less than their rounding: there the step is right as it is.
            if after[0] <= loss - 1e-4 * length * expected + 1e-13 * abs(loss) or length < 1e-9:
                break
            length /= 2
        values = values - length * step
        loss, gradient, chances = after
    left = float(gradient.abs().max())
    raise RuntimeError(f"logistic regression with penalty {penalty:g} did not converge: gradient {left:.1e}")


def _newton_step(gradient: Tensor, chances: Tensor, rows: Tensor, penalty: float, unit: Tensor) -> Tensor:
    """H^-1 gradient by conjugate gradients, where H is the curvature of the loss, never written out."""

    def curved(direction: Tensor) -> Tensor:
        weight, bias = (direction * unit).tensor_split([-1], dim=1)
        change = F.linear(rows, weight, bias[:, 0])
        change = chances * (change - (chances * change).sum(1, keepdim=True)) / len(rows)
        return torch.cat([change.T @ rows + penalty * weight, change.sum(0)[:, None]], dim=1) * unit

    step, left = torch.zeros_like(gradient), gradient.clone()
    direction, size = left.clone(), float(left.square().sum())
    goal = size * min(0.01, size**0.5)  # far from the optimum a rough step will do
    for _ in range(MAX_CONJUGATES):
        bent = curved(direction)
        length = size / float((direction * bent).sum())
        step += length * direction
        left -= length * bent
        size, before = float(left.square().sum()), size
        if size <= goal:
            break
        direction = left + size / before * direction
    return step
