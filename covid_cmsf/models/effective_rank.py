"""How many directions features or embeddings really use. A network may lose them while its loss looks fine."""

# N samples, D feature or embedding

import torch
from torch import Tensor


def effective_rank(features: Tensor) -> float:
    """exp of the entropy of the eigenvalues of the covariance (Roy and Vetterli 2007), from 1 to D."""
    centered = features.double() - features.double().mean(0)
    largest = float(centered.abs().max())
    if largest < 1e-12:
        return 1.0
    # Scaled, in double precision, and on the shorter side: nearly collapsed features defeat the solver otherwise.
    centered = centered / largest
    gram = centered.T @ centered if centered.shape[0] >= centered.shape[1] else centered @ centered.T
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    fractions = values / values.sum()
    return float(torch.exp(-torch.special.xlogy(fractions, fractions).sum()))
