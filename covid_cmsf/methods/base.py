"""What a method is: embeddings of a batch and the banks go in, a loss for each sample comes out.

Whoever trains averages the losses, over one process or over many: the mean over all valid samples is the same
whichever process they were in.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from covid_cmsf.methods.diagnostics import purity
from covid_cmsf.methods.memory_bank import BankIndices, MemoryBanks
from covid_cmsf.methods.neighbors import nearest

# B batch


@dataclass(frozen=True)
class PerSampleLoss:
    """`values` (B,), and `valid` (B,): False for samples that have nothing to learn from, whose value is 0."""

    values: Tensor
    valid: Tensor

    def mean(self) -> Tensor:
        """Over the samples that count; 0 when there are none."""
        return self.values.sum() / self.valid.sum().clamp(min=1)


def mask_invalid(values: Tensor, valid: Tensor) -> PerSampleLoss:
    """The losses with the values of those that do not count set to 0, and no gradient through them."""
    return PerSampleLoss(torch.where(valid, values, 0), valid)


# B batch, D embedding


Metrics = dict[str, float]


@dataclass(frozen=True)
class EmbeddedBatch:
    """A batch after the networks. Only `online` carries a gradient; unknown labels are -1."""

    online: Tensor  # (B, D) unit vectors; class scores for cross entropy
    sources: Tensor  # (B,)
    labels: Tensor  # (B,) what the method may see
    true_labels: Tensor  # (B,) for diagnostics alone
    videos: Tensor  # (B,)
    target: Tensor | None = None  # (B, D) unit vectors
    guides: Mapping[str, Tensor] | None = None  # column of the bank: (B, D') unit vectors
    bank_indices: BankIndices | None = None  # where the targets stand in the banks, once they are pushed

    def select(self, chosen: Tensor | slice) -> "EmbeddedBatch":
        """Some of the samples: `chosen` is a mask (B,) or a slice."""
        return replace(
            self,
            online=self.online[chosen],
            sources=self.sources[chosen],
            labels=self.labels[chosen],
            true_labels=self.true_labels[chosen],
            videos=self.videos[chosen],
            target=None if self.target is None else self.target[chosen],
            guides=None if self.guides is None else {name: values[chosen] for name, values in self.guides.items()},
            bank_indices=None if self.bank_indices is None else self.bank_indices.select(chosen),
        )


class Method(nn.Module, ABC):
    """A loss with its needs. A module, so that frozen prototypes move between devices and into checkpoints."""

    has_target: ClassVar[bool] = True  # a slow copy of the online network gives targets, which go into the bank
    has_predictor: ClassVar[bool] = False  # the online network ends in a predictor
    unit_output: ClassVar[bool] = True  # the online output is scaled to unit length
    uses_labels: bool = False
    uses_guides: bool = False
    memory_kind: Literal["none", "embeddings", "clusters"] = "none"  # of all videos, see `instance_memory`
    push: Literal["before", "after"] = "before"  # whether a batch stands in the bank when its loss is computed

    @abstractmethod
    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """The loss of each sample. Random draws come from `generator`, which is the same in every process."""

    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """What a person wants to see of this batch. Draws nothing, changes nothing."""
        return {}


def unconstrained_purity(batch: EmbeddedBatch, banks: MemoryBanks, *, k: int = 5) -> Metrics:
    """How pure the k nearest entries of all are, whatever the method: {} without labels."""
    assert batch.target is not None and batch.bank_indices is not None
    bank = banks.main
    found = nearest(batch.target, bank.embeddings("target"), k + 1)  # the target itself does not count
    fraction = purity(found, batch.true_labels, bank.ids("true_labels"), own_indices=batch.bank_indices.main)
    return {} if fraction is None else {"purity_free": fraction}
