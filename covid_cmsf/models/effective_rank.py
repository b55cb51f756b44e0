"""Effective rank of features or embeddings. It shows a dimensional collapse, which the loss may not."""

import torch
from torch import Tensor

CHUNK_ROWS = 32_768


def effective_rank(features: Tensor) -> float:
    """Return exp(entropy) of the eigenvalues of the covariance (Roy and Vetterli 2007), from 1 to D.

    `features` is (N, D): samples by dimensions.
    """
    # Scaled, in double precision, and on the shorter side: otherwise eigvalsh fails on nearly collapsed features.
    chunks = features.split(CHUNK_ROWS)  # never a float64 copy of a million rows
    sums = [chunk.double().sum(0) for chunk in chunks]
    mean = sum(sums[1:], sums[0]) / len(features)
    largest = max(float((chunk.double() - mean).abs().max()) for chunk in chunks)
    if largest < 1e-12:
        return 1.0
    scaled = ((chunk.double() - mean) / largest for chunk in chunks)
    if features.shape[0] >= features.shape[1]:
        gram = torch.zeros(features.shape[1], features.shape[1], dtype=torch.float64, device=features.device)
        for chunk in scaled:
            gram += chunk.T @ chunk
    else:
        centered = torch.cat(list(scaled))
        gram = centered @ centered.T
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    fractions = values / values.sum()
    return float(torch.exp(-torch.special.xlogy(fractions, fractions).sum()))
