"""Multinomial logistic regression, fitted to the optimum by L-BFGS in float64: no chance, no learning rate.

    minimise  mean cross entropy + penalty / 2 * |W|^2         the bias is free

This is scikit-learn's LogisticRegression with C = 1 / (penalty * N), of two classes with twice that C.
"""

# N rows, D feature, C classes

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

TOLERANCE = 1e-7  # largest entry of the gradient at the end
MAX_ITERATIONS = 3000


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
    rows = rows.double()
    values = torch.zeros(len(classes), rows.shape[1] + 1, dtype=torch.float64)  # weight and bias
    if start is not None:
        assert torch.equal(start.classes, classes)
        values = torch.cat([start.weight, start.bias[:, None]], dim=1)
    values = _minimised(values, rows, targets, penalty)
    return Logistic(values[:, :-1], values[:, -1], classes)


def _minimised(start: Tensor, rows: Tensor, targets: Tensor, penalty: float) -> Tensor:
    """(C, D + 1) weights and biases at which the gradient vanishes, begun from `start`."""
    one_hot = F.one_hot(targets, len(start)).double()
    # In units in which the loss curves alike everywhere: a strong penalty curves it for weights, not for biases.
    curvature = torch.ones(start.shape[1], dtype=torch.float64) / len(start)
    curvature[:-1] *= rows.square().mean()
    curvature[:-1] += penalty
    unit = curvature.rsqrt()
    values = start / unit
    values.grad = torch.zeros_like(values)
    optimiser = torch.optim.LBFGS(
        [values], max_iter=MAX_ITERATIONS, max_eval=2 * MAX_ITERATIONS, history_size=20,
        tolerance_grad=TOLERANCE, tolerance_change=0, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def loss() -> Tensor:
        weight, bias = (values * unit).tensor_split([-1], dim=1)
        logarithms = F.linear(rows, weight, bias[:, 0]).log_softmax(1)
        errors = (logarithms.exp() - one_hot) / len(rows)  # (N, C)
        assert values.grad is not None
        values.grad[:, :-1] = errors.T @ rows + penalty * weight
        values.grad[:, -1] = errors.sum(0)
        values.grad *= unit
        return -(one_hot * logarithms).sum() / len(rows) + penalty / 2 * weight.square().sum()

    with torch.no_grad():
        optimiser.step(loss)
        loss()
    left = float(values.grad.abs().max())
    if not left <= 10 * TOLERANCE:
        raise RuntimeError(f"logistic regression with penalty {penalty:g} did not converge: gradient {left:.1e}")
    return values.detach() * unit
