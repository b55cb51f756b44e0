"""Supervised methods: regression to class prototypes (ProtoNW, FrzProto) and cross entropy (Xent).

ProtoNW's prototypes are the means of each class's entries in the bank; FrzProto's are random and frozen.
"""

# B batch, C classes, D embedding

from typing import Annotated, ClassVar, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from covid_cmsf.methods.base import (
    BaseMethodConfig,
    EmbeddedBatch,
    HeadConfig,
    Method,
    Metrics,
    PerSampleLoss,
    TargetMethodConfig,
    mask_invalid,
    unconstrained_purity,
)
from covid_cmsf.methods.memory_bank import MemoryBanks


class ProtoNW(Method):
    """Cross entropy over the cosines to class prototypes, which are the means of each class's entries in the bank."""

    uses_labels = True

    def __init__(self, *, num_classes: int, temperature: float) -> None:
        super().__init__()
        self.num_classes, self.temperature = num_classes, temperature

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return the cross entropy; classes without an entry yet are left out, and their samples are invalid."""
        assert banks is not None
        bank = banks.main
        prototypes, has_prototype = bank_prototypes(bank.targets, bank.ids("labels"), num_classes=self.num_classes)
        return prototype_loss(batch.online, prototypes, has_prototype, batch.labels, temperature=self.temperature)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return the purity of the nearest entries."""
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
        """Return the loss; samples without a label are invalid."""
        return frozen_prototype_loss(batch.online, self.prototypes, batch.labels)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return how often the own class's prototype is the nearest."""
        return _accuracy(batch.online.float() @ self.prototypes.T, batch.labels)


class Xent(Method):
    """Cross entropy over the logits of a linear head."""

    has_target = False
    uses_labels = True
    unit_output = False

    def __init__(self, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.feature_dropout = dropout

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return the loss; samples without a label are invalid."""
        return cross_entropy_loss(batch.online, batch.labels)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return how often the own class has the highest logit."""
        return _accuracy(batch.online, batch.labels)


def _accuracy(scores: Tensor, labels: Tensor) -> Metrics:
    has_label = labels >= 0
    if not has_label.any():
        return {}
    return {"accuracy": float((scores[has_label].argmax(1) == labels[has_label]).float().mean())}


def bank_prototypes(bank: Tensor, bank_labels: Tensor, *, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return unit prototypes (C, D), the directions of each class's mean, and which classes have entries (C,)."""
    # Entries without a label add 0 to the first class: to leave them out, the CPU would wait for their number.
    classes, has_label = bank_labels.clamp(min=0), (bank_labels >= 0).float()
    sums = torch.zeros(num_classes, bank.shape[1], device=bank.device).index_add_(0, classes, bank * has_label[:, None])
    counts = torch.zeros(num_classes, device=bank.device).index_add_(0, classes, has_label)
    return F.normalize(sums, dim=1), counts > 0


def prototype_loss(
    online: Tensor, prototypes: Tensor, has_prototype: Tensor, labels: Tensor, *, temperature: float
) -> PerSampleLoss:
    """Return ProtoNW's loss: cross entropy over the cosines to the classes that have a prototype."""
    logits = (online.float() @ prototypes.T / temperature).masked_fill(~has_prototype, -torch.inf)
    valid = (labels >= 0) & has_prototype[labels.clamp(min=0)]
    # The logits of an invalid sample must stay finite: they are 0.
    values = F.cross_entropy(torch.where(valid[:, None], logits, 0), labels.clamp(min=0), reduction="none")
    return mask_invalid(values, valid)


def frozen_prototypes(num_classes: int, dim: int, *, seed: int) -> Tensor:
    """Return random unit vectors (C, D), the same for the same seed."""
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(num_classes, dim, generator=generator), dim=1)


def frozen_prototype_loss(outputs: Tensor, prototypes: Tensor, labels: Tensor) -> PerSampleLoss:
    """Return FrzProto's loss: 2 - 2 cosine between each unit output (B, D) and its class's prototype."""
    cosine = (outputs.float() * prototypes[labels.clamp(min=0)]).sum(1)
    return mask_invalid(2 - 2 * cosine, labels >= 0)


def cross_entropy_loss(scores: Tensor, labels: Tensor) -> PerSampleLoss:
    """Return the cross entropy of logits (B, C) and labels (B,); samples with label -1 are invalid."""
    values = F.cross_entropy(scores.float(), labels.clamp(min=0), reduction="none")
    return mask_invalid(values, labels >= 0)


class ProtoNwConfig(TargetMethodConfig):
    """Cross entropy over the cosines to class means in the bank."""

    name: Literal["protonw"]
    temperature: Annotated[float, Field(gt=0)] = Field(default=0.1, description="of the softmax")

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return ProtoNW(num_classes=num_classes, temperature=self.temperature)


class FrzProtoConfig(BaseMethodConfig):
    """Regression to frozen random prototypes."""

    name: Literal["frzproto"]
    head: HeadConfig = HeadConfig(projector="mlp")
    prototype_seed: int = Field(default=0, ge=0, description="of the random prototypes")

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return FrzProto(num_classes=num_classes, dim=embedding_dim, seed=self.prototype_seed)


class XentConfig(BaseMethodConfig):
    """Cross entropy over the logits of a linear layer."""

    name: Literal["xent"]
    title: ClassVar[str] = "Xent"
    head: None = Field(default=None, description="always a linear layer to the classes")
    dropout: float = Field(default=0.0, ge=0, lt=1, description="before the linear layer (0.9: Han et al.)")

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return Xent(dropout=self.dropout)
