"""Methods that regress to one prototype a class, or classify: ProtoNW, FrzProto, Xent."""

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.methods.base import EmbeddedBatch, Method, Metrics, PerSampleLoss, mask_invalid, unconstrained_purity
from covid_cmsf.methods.memory_bank import MemoryBanks

# B batch, C classes, D embedding


class ProtoNW(Method):
    """Cross entropy over the cosines to class prototypes, which are the means of each class's entries in the bank."""

    uses_labels = True

    def __init__(self, *, num_classes: int, temperature: float) -> None:
        super().__init__()
        self.num_classes, self.temperature = num_classes, temperature

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Classes without an entry yet are no choice, and their samples do not count."""
        assert banks is not None
        bank = banks.main
        prototypes, has_prototype = bank_prototypes(
            bank.embeddings("target"), bank.ids("labels"), num_classes=self.num_classes
        )
        return prototype_loss(batch.online, prototypes, has_prototype, batch.labels, temperature=self.temperature)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """How pure the nearest entries are."""
        assert banks is not None
        return unconstrained_purity(batch, banks)


class FrzProto(Method):
    """2 - 2 cosine to the class's prototype, which is random and never moves."""

    has_target = False
    uses_labels = True
    prototypes: Tensor  # (C, D)

    def __init__(self, *, num_classes: int, dim: int, seed: int) -> None:
        super().__init__()
        self.register_buffer("prototypes", frozen_prototypes(num_classes, dim, seed=seed))

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Examples without a label do not count."""
        return frozen_prototype_loss(batch.online, self.prototypes, batch.labels)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """How often the own class's prototype is the nearest."""
        return _accuracy(batch.online.float() @ self.prototypes.T, batch.labels)


class Xent(Method):
    """Cross entropy over the class scores of a linear head."""

    has_target = False
    uses_labels = True
    unit_output = False

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Examples without a label do not count."""
        return cross_entropy_loss(batch.online, batch.labels)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """How often the own class has the highest score."""
        return _accuracy(batch.online, batch.labels)


def _accuracy(scores: Tensor, labels: Tensor) -> Metrics:
    has_label = labels >= 0
    if not has_label.any():
        return {}
    return {"accuracy": float((scores[has_label].argmax(1) == labels[has_label]).float().mean())}


# Losses against one prototype a class.
#
# ProtoNW: prototypes are the means of each class's entries in the bank. FrzProto: they are random and frozen.

# B batch, M bank entries, D embedding, C classes


def bank_prototypes(bank: Tensor, bank_labels: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Unit prototypes (C, D), each the direction of its entries' mean, and which classes have entries (C,)."""
    has_label = bank_labels >= 0
    sums = torch.zeros(num_classes, bank.shape[1], device=bank.device).index_add_(
        0, bank_labels[has_label], bank[has_label]
    )
    counts = torch.bincount(bank_labels[has_label], minlength=num_classes)
    return F.normalize(sums, dim=1), counts > 0


def prototype_loss(
    online: Tensor, prototypes: Tensor, has_prototype: Tensor, labels: Tensor, *, temperature: float
) -> PerSampleLoss:
    """ProtoNW: cross entropy over the cosines to the classes that have a prototype; others do not count."""
    logits = (online.float() @ prototypes.T / temperature).masked_fill(~has_prototype, -torch.inf)
    valid = (labels >= 0) & has_prototype[labels.clamp(min=0)]
    # A entry that does not count must stay finite: give it the score 0 everywhere.
    values = F.cross_entropy(torch.where(valid[:, None], logits, 0), labels.clamp(min=0), reduction="none")
    return mask_invalid(values, valid)


def frozen_prototypes(num_classes: int, dim: int, *, seed: int) -> Tensor:
    """(C, D) random directions, the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num_classes, dim, generator=generator), dim=1)


def frozen_prototype_loss(outputs: Tensor, prototypes: Tensor, labels: Tensor) -> PerSampleLoss:
    """FrzProto: 2 - 2 cosine between each unit output (B, D) and its class's prototype."""
    cosine = (outputs.float() * prototypes[labels.clamp(min=0)]).sum(1)
    return mask_invalid(2 - 2 * cosine, labels >= 0)


# Cross entropy with labels: the supervised baseline.

# B batch, C classes


def cross_entropy_loss(scores: Tensor, labels: Tensor) -> PerSampleLoss:
    """Class scores (B, C) before the softmax, labels (B,); an unknown label (-1) does not count."""
    values = F.cross_entropy(scores.float(), labels.clamp(min=0), reduction="none")
    return mask_invalid(values, labels >= 0)
