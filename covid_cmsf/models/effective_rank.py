"""Effective rank of features or embeddings. It shows a dimensional collapse, which the loss may not."""

import torch
from torch import Tensor


def effective_rank(features: Tensor) -> float:
    """Return exp(entropy) of the eigenvalues of the covariance (Roy and Vetterli 2007), from 1 to D.

    `features` is (N, D): samples by dimensions.
    """
    centered = features.double() - features.double().mean(0)
    largest = float(centered.abs().max())
    if largest < 1e-12:
        return 1.0
    # Scaled, in double precision, and on the shorter side: otherwise eigvalsh fails on nearly collapsed features.
    centered = centered / largest
    gram = centered.T @ centered if centered.shape[0] >= centered.shape[1] else centered @ centered.T
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    fractions = values / values.sum()
    return float(torch.exp(-torch.special.xlogy(fractions, fractions).sum()))
