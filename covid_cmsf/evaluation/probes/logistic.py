"""Multinomial logistic regression, fitted to the optimum by Newton steps in float64: deterministic, no learning rate.

    minimize  mean cross entropy + penalty / 2 * |W|^2         (no penalty on the bias)

The optimum is that of scikit-learn's LogisticRegression with C = 1 / (penalty * N), or 2 / (penalty * N) for two
classes.
"""

# N samples, D feature, C classes

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 1e-7  # largest entry of the gradient at the end
MAX_STEPS = 200
MAX_CG_STEPS = 500  # per Newton step


@dataclass(frozen=True)
class Logistic:
    """A fitted classifier. Classes without a training sample get probability 0."""

    weight: Tensor  # (classes seen, D)
    bias: Tensor  # (classes seen,)
    classes: Tensor  # (classes seen,) labels

    def probabilities(self, features: Tensor, num_classes: int) -> Tensor:
        """Map (N, D) features to (N, num_classes) probabilities, float64."""
        seen_probs = F.linear(features.double(), self.weight, self.bias).softmax(1)
        return torch.zeros(len(features), num_classes, dtype=torch.float64).index_copy_(1, self.classes, seen_probs)


def fit_logistic(features: Tensor, labels: Tensor, penalty: float, *, init: Logistic | None = None) -> Logistic:
    """Fit (N, D) features to the optimum; RuntimeError if it does not converge.

    `init`, a fit to the same classes, saves time and does not change the optimum.
    """
    if not penalty > 0:
        raise ValueError(f"the penalty must be above 0, not {penalty}")
    classes, targets = labels.unique(return_inverse=True)
    if len(classes) < 2:
        raise ValueError("all training videos have the same label; a classifier needs at least two classes")
    # Along the principal axes the curvature of the loss is proportional to the variance, so each axis can be scaled
    # by it. A rotation does not change the penalty, and the bias absorbs the mean.
    features = features.double()
    mean = features.mean(0)
    variances, axes = torch.linalg.eigh((features - mean).T @ (features - mean) / len(features))  # (D,), (D, D)
    values = torch.zeros(len(classes), features.shape[1] + 1, dtype=torch.float64)  # weight and bias
    if init is not None:
        assert torch.equal(init.classes, classes)
        values = torch.cat([init.weight @ axes, (init.bias + init.weight @ mean)[:, None]], dim=1)
    values = _minimize(values, (features - mean) @ axes, variances.clamp(min=0), targets, penalty)
    weight = values[:, :-1] @ axes.T
    return Logistic(weight, values[:, -1] - weight @ mean, classes)


def _minimize(init: Tensor, features: Tensor, variances: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Return weights and biases (C, D + 1) at which the gradient vanishes, by damped Newton steps from `init`."""
    one_hot = F.one_hot(targets, len(init)).double()
    curvature = torch.cat([variances / len(init) + penalty, torch.ones(1, dtype=torch.float64) / len(init)])
    scale = curvature.rsqrt()

    def loss_and_grad(values: Tensor) -> tuple[float, Tensor, Tensor]:
        weight, bias = (values * scale).tensor_split([-1], dim=1)
        log_probs = F.linear(features, weight, bias[:, 0]).log_softmax(1)
        probs = log_probs.exp()
        errors = (probs - one_hot) / len(features)
        gradient = torch.cat([errors.T @ features + penalty * weight, errors.sum(0)[:, None]], dim=1) * scale
        loss = -(one_hot * log_probs).sum() / len(features) + penalty / 2 * weight.square().sum()
        return float(loss), gradient, probs  # probs: (N, C)

    values = init / scale
    loss, gradient, probs = loss_and_grad(values)
    for _ in range(MAX_STEPS):
        if float(gradient.abs().max()) <= TOLERANCE:
            return values * scale
        step = _newton_step(gradient, probs, features, penalty, scale)
        expected = float((gradient * step).sum())
        step_size = 1.0
        while True:
            candidate = loss_and_grad(values - step_size * step)
            # At the optimum losses differ by less than their rounding error: accept the step there.
            if candidate[0] <= loss - 1e-4 * step_size * expected + 1e-13 * abs(loss) or step_size < 1e-9:
                break
            step_size /= 2
        values = values - step_size * step
        loss, gradient, probs = candidate
    residual = float(gradient.abs().max())
    raise RuntimeError(f"logistic regression with penalty {penalty:g} did not converge: gradient {residual:.1e}")


def _newton_step(gradient: Tensor, probs: Tensor, features: Tensor, penalty: float, scale: Tensor) -> Tensor:
    """Return H^-1 gradient by conjugate gradients, with products by the Hessian H instead of H."""

    def hessian_product(direction: Tensor) -> Tensor:
        weight, bias = (direction * scale).tensor_split([-1], dim=1)
        change = F.linear(features, weight, bias[:, 0])
        change = probs * (change - (probs * change).sum(1, keepdim=True)) / len(features)
        return torch.cat([change.T @ features + penalty * weight, change.sum(0)[:, None]], dim=1) * scale

    step, residual = torch.zeros_like(gradient), gradient.clone()
    direction, residual_norm = residual.clone(), float(residual.square().sum())
    tolerance = residual_norm * min(0.01, residual_norm**0.5)  # a rough step is enough far from the optimum
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
