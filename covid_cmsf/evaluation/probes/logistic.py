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
MAX_CG_STEPS = 500  # for one step


@dataclass(frozen=True)
class Logistic:
    """A fitted classifier. Classes that were not seen get probability 0."""

    weight: Tensor  # (C seen, D)
    bias: Tensor  # (C seen,)
    classes: Tensor  # (C seen,) labels

    def probabilities(self, rows: Tensor, num_classes: int) -> Tensor:
        """(N, D) -> (N, num_classes), float64."""
        seen_probs = F.linear(rows.double(), self.weight, self.bias).softmax(1)
        return torch.zeros(len(rows), num_classes, dtype=torch.float64).index_copy_(1, self.classes, seen_probs)


def fit_logistic(rows: Tensor, labels: Tensor, penalty: float, *, init: Logistic | None = None) -> Logistic:
    """The optimum for (N, D) rows; `start` (a fit to the same classes) only saves time. RuntimeError without one."""
    if not penalty > 0:
        raise ValueError(f"the penalty must be above 0, not {penalty}")
    classes, targets = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError("all videos to learn from have one label; a classifier needs two classes at least")
    # Along the principal axes the loss curves as the rows vary, so each axis can be given a unit of its own. The
    # penalty does not notice a rotation, and the free bias takes up the mean.
    rows = rows.double()
    mean = rows.mean(0)
    variances, axes = torch.linalg.eigh((rows - mean).T @ (rows - mean) / len(rows))  # (D,), (D, D)
    values = torch.zeros(len(classes), rows.shape[1] + 1, dtype=torch.float64)  # weight and bias
    if init is not None:
        assert torch.equal(init.classes, classes)
        values = torch.cat([init.weight @ axes, (init.bias + init.weight @ mean)[:, None]], dim=1)
    values = _minimize(values, (rows - mean) @ axes, variances.clamp(min=0), targets, penalty)
    weight = values[:, :-1] @ axes.T
    return Logistic(weight, values[:, -1] - weight @ mean, classes)


def _minimize(init: Tensor, rows: Tensor, variances: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """(C, D + 1) weights and biases at which the gradient vanishes, begun from `start`: damped Newton steps."""
    one_hot = F.one_hot(targets, len(init)).double()
    curvature = torch.cat([variances / len(init) + penalty, torch.ones(1, dtype=torch.float64) / len(init)])
    scale = curvature.rsqrt()

    def loss_and_grad(values: Tensor) -> tuple[float, Tensor, Tensor]:
        """Loss, gradient, and probabilities (N, C)."""
        weight, bias = (values * scale).tensor_split([-1], dim=1)
        log_probs = F.linear(rows, weight, bias[:, 0]).log_softmax(1)
        probs = log_probs.exp()
        errors = (probs - one_hot) / len(rows)
        gradient = torch.cat([errors.T @ rows + penalty * weight, errors.sum(0)[:, None]], dim=1) * scale
        loss = -(one_hot * log_probs).sum() / len(rows) + penalty / 2 * weight.square().sum()
        return float(loss), gradient, probs

    values = init / scale
    loss, gradient, probs = loss_and_grad(values)
    for _ in range(MAX_STEPS):
        if float(gradient.abs().max()) <= TOLERANCE:
            return values * scale
        step = _newton_step(gradient, probs, rows, penalty, scale)
        expected = float((gradient * step).sum())
        step_size = 1.0
        while True:
            candidate = loss_and_grad(values - step_size * step)
            # At the optimum losses differ by less than their rounding: there the step is right as it is.
            if candidate[0] <= loss - 1e-4 * step_size * expected + 1e-13 * abs(loss) or step_size < 1e-9:
                break
            step_size /= 2
        values = values - step_size * step
        loss, gradient, probs = candidate
    residual = float(gradient.abs().max())
    raise RuntimeError(f"logistic regression with penalty {penalty:g} did not converge: gradient {residual:.1e}")


def _newton_step(gradient: Tensor, probs: Tensor, rows: Tensor, penalty: float, scale: Tensor) -> Tensor:
    """H^-1 gradient by conjugate gradients, where H is the curvature of the loss, never written out."""

    def hessian_product(direction: Tensor) -> Tensor:
        weight, bias = (direction * scale).tensor_split([-1], dim=1)
        change = F.linear(rows, weight, bias[:, 0])
        change = probs * (change - (probs * change).sum(1, keepdim=True)) / len(rows)
        return torch.cat([change.T @ rows + penalty * weight, change.sum(0)[:, None]], dim=1) * scale

    step, residual = torch.zeros_like(gradient), gradient.clone()
    direction, residual_norm = residual.clone(), float(residual.square().sum())
    tolerance = residual_norm * min(0.01, residual_norm**0.5)  # far from the optimum a rough step will do
    for _ in range(MAX_CG_STEPS):
        hessian_direction = hessian_product(direction)
        step_size = residual_norm / float((direction * hessian_direction).sum())
        step += step_size * direction
        residual -= step_size * hessian_direction
        residual_norm, previous_norm = float(residual.square().sum()), residual_norm
        if residual_norm <= tolerance:
            break
        direction = residual + residual_norm / previous_norm * direction
    return step
