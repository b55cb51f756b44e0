"""Multinomial logistic regression, fitted to the optimum by Newton steps: deterministic, no learning rate.

Samples are visited in chunks, so that a million of them with a thousand classes fit into memory. Products have the type
of the features: float64, or fp32 where float64 would take hours (`linear.standardize` decides); then probabilities are
within 0.002 of the optimum. Weights and sums over chunks are float64 always.

    minimize  mean cross entropy + penalty / 2 * |W|^2         (no penalty on the bias)

The optimum is that of scikit-learn's LogisticRegression with C = 1 / (penalty * N), or 2 / (penalty * N) for two
classes.
"""

# N samples, D feature, C classes

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.chunks import column_mean, map_rows, row_chunks

TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-5}  # largest entry of the gradient at the end
LOSS_NOISE = {torch.float64: 1e-13, torch.float32: 1e-7}  # relative: losses that differ by less count as equal
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

    def predict(self, features: Tensor) -> Tensor:
        """Map (N, D) features to the (N,) most probable labels, without all their probabilities in memory at once."""
        chunks = row_chunks(len(features), max(len(self.classes), features.shape[1]))
        seen = [F.linear(features[rows].double(), self.weight, self.bias).softmax(1).argmax(1) for rows in chunks]
        return self.classes[torch.cat(seen)]


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
    mean = column_mean(features)
    covariance = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64)
    for rows in row_chunks(*features.shape):
        centered = features[rows].double() - mean
        covariance += centered.T @ centered
    variances, axes = torch.linalg.eigh(covariance / len(features))  # (D,), (D, D)
    values = torch.zeros(len(classes), features.shape[1] + 1, dtype=torch.float64)  # weight and bias
    if init is not None:
        assert torch.equal(init.classes, classes)
        values = torch.cat([init.weight @ axes, (init.bias + init.weight @ mean)[:, None]], dim=1)
    rotated = map_rows(features, lambda rows: (rows - mean) @ axes, dtype=features.dtype)
    values = _minimize(values, rotated, variances.clamp(min=0), targets, penalty)
    weight = values[:, :-1] @ axes.T
    return Logistic(weight, values[:, -1] - weight @ mean, classes)


@dataclass(frozen=True)
class _Objective:
    """The loss as a function of scaled weights and biases (C, D + 1), with its derivatives, over chunks of samples."""

    features: Tensor  # (N, D)
    targets: Tensor  # (N,)
    penalty: float
    scale: Tensor  # (D + 1,)
    num_classes: int

    @property
    def num_samples(self) -> int:
        return len(self.features)

    def chunks(self) -> list[slice]:
        return list(row_chunks(len(self.features), max(self.num_classes, self.features.shape[1])))

    def log_probs(self, values: Tensor, rows: slice) -> Tensor:
        """Return (n, C) log-probabilities of some samples."""
        return self.linear(values, rows).log_softmax(1)

    def linear(self, values: Tensor, rows: slice) -> Tensor:
        """Return (n, C) products of some samples and (C, D + 1) values."""
        weight, bias = (values * self.scale).to(self.features.dtype).tensor_split([-1], dim=1)
        return F.linear(self.features[rows], weight, bias[:, 0])

    def loss_and_gradient(self, values: Tensor) -> tuple[float, Tensor]:
        """Return the loss and its gradient (C, D + 1)."""
        weight = (values * self.scale)[:, :-1]
        log_likelihood = torch.zeros((), dtype=torch.float64)
        weight_gradient, bias_gradient = torch.zeros_like(weight), torch.zeros_like(values[:, -1])
        for rows in self.chunks():
            targets = self.targets[rows, None]
            errors = self.log_probs(values, rows)
            log_likelihood += errors.gather(1, targets).double().sum()
            errors.exp_().scatter_add_(1, targets, -torch.ones_like(targets, dtype=errors.dtype)).div_(self.num_samples)
            weight_gradient += errors.T @ self.features[rows]
            bias_gradient += errors.sum(0)
        gradient = torch.cat([weight_gradient + self.penalty * weight, bias_gradient[:, None]], dim=1) * self.scale
        loss = -log_likelihood / self.num_samples + self.penalty / 2 * weight.square().sum()
        return float(loss), gradient

    def hessian(self, values: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product by the Hessian at `values`. Probabilities of several chunks are computed every time."""
        chunks = self.chunks()
        kept = self.log_probs(values, chunks[0]).exp() if len(chunks) == 1 else None

        def product(direction: Tensor) -> Tensor:
            weight = (direction * self.scale)[:, :-1]
            weight_product, bias_product = torch.zeros_like(weight), torch.zeros_like(direction[:, -1])
            for rows in chunks:
                probs = self.log_probs(values, rows).exp_() if kept is None else kept
                change = self.linear(direction, rows)
                change.sub_((probs * change).sum(1, keepdim=True)).mul_(probs).div_(self.num_samples)
                weight_product += change.T @ self.features[rows]
                bias_product += change.sum(0)
            return torch.cat([weight_product + self.penalty * weight, bias_product[:, None]], dim=1) * self.scale

        return product


def _minimize(init: Tensor, features: Tensor, variances: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """Return weights and biases (C, D + 1) at which the gradient vanishes, by damped Newton steps from `init`."""
    curvature = torch.cat([variances / len(init) + penalty, torch.ones(1, dtype=torch.float64) / len(init)])
    scale = curvature.rsqrt()
    objective = _Objective(features, targets, penalty, scale, len(init))
    values = init / scale
    loss, gradient = objective.loss_and_gradient(values)
    for _ in range(MAX_STEPS):
        if float(gradient.abs().max()) <= TOLERANCE[features.dtype]:
            return values * scale
        step = _newton_step(gradient, objective.hessian(values))
        expected = float((gradient * step).sum())
        step_size, noise = 1.0, LOSS_NOISE[features.dtype] * abs(loss)
        while True:
            candidate = objective.loss_and_gradient(values - step_size * step)
            # At the optimum losses differ by less than their rounding error: accept the step there.
            if candidate[0] <= loss - 1e-4 * step_size * expected + noise or step_size < 1e-9:
                break
            step_size /= 2
        values = values - step_size * step
        loss, gradient = candidate
    residual = float(gradient.abs().max())
    raise RuntimeError(f"logistic regression with penalty {penalty:g} did not converge: gradient {residual:.1e}")


def _newton_step(gradient: Tensor, hessian_product: Callable[[Tensor], Tensor]) -> Tensor:
    """Return H^-1 gradient by conjugate gradients, with products by the Hessian H instead of H."""
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
