"""How many directions features or embeddings really use. A network may lose them while its loss looks fine."""

# N rows, D feature or embedding

import torch
from torch import Tensor


def effective_rank(rows: Tensor) -> float:
    """exp of the entropy of the eigenvalues of the covariance (Roy and Vetterli 2007), from 1 to D."""
    centered = rows.double() - rows.double().mean(0)
    largest = float(centered.abs().max())
    if largest < 1e-12:
        return 1.0
    # Scaled, in double precision, and on the shorter side: nearly collapsed rows defeat the solver otherwise.
    centered = centered / largest
    gram = centered.T @ centered if centered.shape[0] >= centered.shape[1] else centered @ centered.T
    values = torch.linalg.eigvalsh(gram).clamp(min=0)
    shares = values / values.sum()
    return float(torch.exp(-torch.special.xlogy(shares, shares).sum()))
