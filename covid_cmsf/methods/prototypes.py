"""Losses against one prototype a class.

ProtoNW: prototypes are the means of each class's rows in the bank. FrzProto: they are random and frozen.
"""

# B batch, M bank rows, D embedding, C classes

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.methods.example_losses import ExampleLosses, counted_only


def bank_prototypes(bank: Tensor, bank_labels: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Unit prototypes (C, D), each the direction of its rows' mean, and which classes have rows (C,)."""
    known = bank_labels >= 0
    sums = torch.zeros(num_classes, bank.shape[1], device=bank.device).index_add_(0, bank_labels[known], bank[known])
    counts = torch.bincount(bank_labels[known], minlength=num_classes)
    return F.normalize(sums, dim=1), counts > 0


def prototype_loss(
    online: Tensor, prototypes: Tensor, there: Tensor, labels: Tensor, *, temperature: float
) -> ExampleLosses:
    """ProtoNW: cross entropy over the cosines to the classes that have a prototype; others do not count."""
    logits = (online.float() @ prototypes.T / temperature).masked_fill(~there, -torch.inf)
    counted = (labels >= 0) & there[labels.clamp(min=0)]
    # A row that does not count must stay finite: give it the score 0 everywhere.
    values = F.cross_entropy(torch.where(counted[:, None], logits, 0), labels.clamp(min=0), reduction="none")
    return counted_only(values, counted)


def frozen_prototypes(num_classes: int, size: int, *, seed: int) -> Tensor:
    """(C, D) random directions, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num_classes, size, generator=generator), dim=1)


def frozen_prototype_loss(outputs: Tensor, prototypes: Tensor, labels: Tensor) -> ExampleLosses:
    """FrzProto: 2 - 2 cosine between each unit output (B, D) and its class's prototype."""
    cosine = (outputs.float() * prototypes[labels.clamp(min=0)]).sum(1)
    return counted_only(2 - 2 * cosine, labels >= 0)
