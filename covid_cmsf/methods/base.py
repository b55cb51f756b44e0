"""The interface of a method: embeddings of a batch and the memory banks in, a loss per sample out.

A method is one file and one entry: a `Method` that computes the loss, and a `BaseMethodConfig` with its options, its
name in tables, what it needs (target network, bank, guides) and `build`; the entry is in `methods/registry.py`.
Losses are per sample because the training loop averages them, over one process or over many.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from covid_cmsf.config import Config
from covid_cmsf.methods.diagnostics import purity
from covid_cmsf.methods.memory_bank import BankIndices, MemoryBanks
from covid_cmsf.methods.neighbors import nearest

# B batch, D embedding

Metrics = dict[str, float]


@dataclass(frozen=True)
class PerSampleLoss:
    """`values` (B,), and `valid` (B,): False for samples that have nothing to learn from, whose value is 0."""

    values: Tensor
    valid: Tensor

    def mean(self) -> Tensor:
        """Return the mean over the valid samples; 0 when there are none."""
        return self.values.sum() / self.valid.sum().clamp(min=1)


def mask_invalid(values: Tensor, valid: Tensor) -> PerSampleLoss:
    """Return the losses with invalid ones set to 0; no gradient flows through these."""
    return PerSampleLoss(torch.where(valid, values, 0), valid)


@dataclass(frozen=True)
class EmbeddedBatch:
    """A batch after the networks. Only `online` carries a gradient; unknown labels are -1."""

    online: Tensor  # (B, D) unit vectors; class scores for cross entropy
    sources: Tensor  # (B,)
    labels: Tensor  # (B,) what the method may see
    true_labels: Tensor  # (B,) for diagnostics alone
    videos: Tensor  # (B,)
    target: Tensor | None = None  # (B, D) unit vectors
    guides: Mapping[str, Tensor] | None = None  # bank column: (B, D') unit vectors
    bank_indices: BankIndices | None = None  # the targets' entries, once they are pushed

    def select(self, chosen: Tensor | slice) -> "EmbeddedBatch":
        """Return some of the samples: `chosen` are rows, a mask (B,) or a slice."""
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
    """A loss and what it needs. A module, so that frozen prototypes move between devices and into checkpoints."""

    has_target: ClassVar[bool] = True  # an EMA of the online network gives targets, which go into the bank
    has_predictor: ClassVar[bool] = False  # the online network ends in a predictor
    unit_output: ClassVar[bool] = True  # the online output is scaled to unit length
    feature_dropout: float = 0.0  # between encoder and head
    uses_labels: bool = False
    uses_guides: bool = False
    memory_kind: Literal["none", "embeddings", "clusters"] = "none"  # what `instance_memory` keeps of every video
    num_clusters: int = 0  # of k-means after every epoch, for memory_kind "clusters"
    kmeans_iterations: int = 20
    push: Literal["before", "after"] = "before"  # whether the batch enters the bank before or after its loss

    @abstractmethod
    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return the loss of each sample. Random numbers come from `generator`, the same in every process."""

    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return diagnostics of this batch. Draws no random numbers, changes no state."""
        return {}


class HeadConfig(Config):
    """The projection head on an encoder of d features."""

    projector: Literal["cmsf", "coclr", "supcon", "mlp", "linear"] = Field(
        default="cmsf",
        description="cmsf: d-2d-d/4 with batch norm; coclr: d-d-128; supcon: d-d-128 with batch norm; "
        "mlp: d-d-d with batch norm; linear: d-d",
    )
    embedding_size: int | None = Field(default=None, ge=1, description="another width of the output")
    output_batch_norm: bool = Field(default=False, description="batch norm after the projector: keeps the rank up")
    reuse: bool = Field(default=False, description="take the projector of `init` instead of a new one")


class BaseMethodConfig(Config, ABC):
    """The specification of a method: its options, its name in tables, what it needs, and how it is built."""

    title: ClassVar[str] = ""  # in tables; the configuration's name where it is empty
    has_target: ClassVar[bool] = False  # a target network and a memory bank
    extra_columns: ClassVar[tuple[str, ...]] = ()  # bank columns as wide as the target's, besides guides

    name: str
    head: HeadConfig | None = None  # None: a linear classifier

    @abstractmethod
    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        """Return the method for `num_classes` classes (0: no labels) and embeddings of `embedding_dim` values."""

    @property
    def display_name(self) -> str:
        """The method's name in tables and reports."""
        return self.title or self.name

    @property
    def max_guides(self) -> int | None:
        """How many guides the method takes; None: any number."""
        return 0

    @property
    def uses_guides(self) -> bool:
        """Whether the method needs a guide."""
        return self.max_guides != 0

    @property
    def constraint_name(self) -> str:
        """What constrains the neighbors, in tables, where that is no guide."""
        return ""

    @property
    def second_bank_size(self) -> int:
        """Entries of a second bank for labeled samples; 0: there is none."""
        return 0


class TargetMethodConfig(BaseMethodConfig):
    """A method with a target network and a memory bank."""

    has_target: ClassVar[bool] = True

    head: HeadConfig = HeadConfig()
    bank_size: int = Field(default=8192, ge=1, description="entries of the memory bank")
    bank_warmup: Annotated[int, Field(ge=0)] | Literal["full"] = Field(
        default=0, description="train no step before the bank holds so many entries, or is full"
    )
    ema_momentum: float = Field(default=0.99, ge=0, lt=1, description="of the target network")
    ema_schedule: Literal["constant", "cosine"] = Field(
        default="constant", description="cosine: the momentum rises to 1, as in BYOL"
    )

    @property
    def warmup_entries(self) -> int:
        """How many entries the bank must hold before the first step."""
        return self.bank_size if self.bank_warmup == "full" else min(self.bank_warmup, self.bank_size)


def unconstrained_purity(batch: EmbeddedBatch, banks: MemoryBanks, *, k: int = 5) -> Metrics:
    """Return the purity of the k nearest entries, whatever the method; {} without labels."""
    assert batch.target is not None and batch.bank_indices is not None
    bank = banks.main
    found = nearest(batch.target, bank.targets, k + 1)  # one more: the target itself does not count
    fraction = purity(found, batch.true_labels, bank.ids("true_labels"), own_indices=batch.bank_indices.main)
    return {} if fraction is None else {"purity_free": fraction}
