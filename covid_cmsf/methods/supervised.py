"""Methods that regress to one prototype a class, or classify: ProtoNW, FrzProto, Xent."""

# B batch, C classes, D embedding

import torch
from torch import Tensor

from covid_cmsf.methods.banks import Banks
from covid_cmsf.methods.cross_entropy import cross_entropy_loss
from covid_cmsf.methods.example_losses import ExampleLosses
from covid_cmsf.methods.method import Embedded, Facts, Method, free_purity
from covid_cmsf.methods.prototypes import (
    bank_prototypes,
    frozen_prototype_loss,
    frozen_prototypes,
    prototype_loss,
)


class ProtoNW(Method):
    """Cross entropy over the cosines to class prototypes, which are the means of each class's rows in the bank."""

    uses_labels = True

    def __init__(self, *, num_classes: int, temperature: float) -> None:
        super().__init__()
        self.num_classes, self.temperature = num_classes, temperature

    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """Classes without a row yet are no choice, and their examples do not count."""
        assert banks is not None
        bank = banks.everyone
        prototypes, there = bank_prototypes(bank.rows("target"), bank.who("labels"), num_classes=self.num_classes)
        return prototype_loss(batch.online, prototypes, there, batch.labels, temperature=self.temperature)

    @torch.no_grad()
    def watch(self, batch: Embedded, banks: Banks | None) -> Facts:
        """How pure the nearest rows are."""
        assert banks is not None
        return free_purity(batch, banks)


class FrzProto(Method):
    """2 - 2 cosine to the class's prototype, which is random and never moves."""

    has_target = False
    uses_labels = True
    prototypes: Tensor  # (C, D)

    def __init__(self, *, num_classes: int, size: int, seed: int) -> None:
        super().__init__()
        self.register_buffer("prototypes", frozen_prototypes(num_classes, size, seed=seed))

    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """Examples without a label do not count."""
        return frozen_prototype_loss(batch.online, self.prototypes, batch.labels)

    @torch.no_grad()
    def watch(self, batch: Embedded, banks: Banks | None) -> Facts:
        """How often the own class's prototype is the nearest."""
        return _accuracy(batch.online.float() @ self.prototypes.T, batch.labels)


class Xent(Method):
    """Cross entropy over the class scores of a linear head."""

    has_target = False
    uses_labels = True
    unit_output = False

    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """Examples without a label do not count."""
        return cross_entropy_loss(batch.online, batch.labels)

    @torch.no_grad()
    def watch(self, batch: Embedded, banks: Banks | None) -> Facts:
        """How often the own class has the highest score."""
        return _accuracy(batch.online, batch.labels)


def _accuracy(scores: Tensor, labels: Tensor) -> Facts:
    known = labels >= 0
    if not known.any():
        return {}
    return {"accuracy": float((scores[known].argmax(1) == labels[known]).float().mean())}
