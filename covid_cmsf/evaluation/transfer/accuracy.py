"""Share of right answers: of all images (top-1), or of each class and then averaged."""

# N images, C classes

from torch import Tensor

from covid_cmsf.evaluation.transfer.datasets import METRICS, Metric


def accuracy(answers: Tensor, labels: Tensor, metric: Metric) -> float:
    """Percent for (N,) answers and labels. The mean over classes is over those that the labels have."""
    if metric not in METRICS:
        raise ValueError(f"unknown metric {metric!r}; choose from {', '.join(METRICS)}")
    right = (answers == labels).double()
    if metric == "top1":
        return 100 * float(right.mean())
    counts = labels.bincount().double()  # (C,)
    hits = labels.bincount(weights=right)
    return 100 * float((hits[counts > 0] / counts[counts > 0]).mean())
