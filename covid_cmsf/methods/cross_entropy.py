"""Cross entropy with labels: the supervised baseline."""

# B batch, C classes

import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.methods.example_losses import ExampleLosses, counted_only


def cross_entropy_loss(scores: Tensor, labels: Tensor) -> ExampleLosses:
    """Class scores (B, C) before the softmax, labels (B,); an unknown label (-1) does not count."""
    values = F.cross_entropy(scores.float(), labels.clamp(min=0), reduction="none")
    return counted_only(values, labels >= 0)
