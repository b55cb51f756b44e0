"""What a method is: embeddings of a batch and the banks go in, a loss for each example comes out."""

# B batch, D embedding

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from covid_cmsf.methods.banks import Banks, OwnRows
from covid_cmsf.methods.diagnostics import purity
from covid_cmsf.methods.example_losses import ExampleLosses
from covid_cmsf.methods.neighbors import nearest

Facts = dict[str, float]


@dataclass(frozen=True)
class Embedded:
    """A batch after the networks. Only `online` carries a gradient; unknown labels are -1."""

    online: Tensor  # (B, D) unit vectors; class scores for cross entropy
    sources: Tensor  # (B,)
    labels: Tensor  # (B,) what the method may see
    true_labels: Tensor  # (B,) for diagnostics alone
    videos: Tensor  # (B,)
    target: Tensor | None = None  # (B, D) unit vectors
    guides: Mapping[str, Tensor] | None = None  # column of the bank: (B, D') unit vectors
    rows: OwnRows | None = None  # where the targets stand in the banks, once they are pushed

    def select(self, chosen: Tensor | slice) -> "Embedded":
        """Some of the examples: `chosen` is a mask (B,) or a slice."""
        return replace(
            self,
            online=self.online[chosen],
            sources=self.sources[chosen],
            labels=self.labels[chosen],
            true_labels=self.true_labels[chosen],
            videos=self.videos[chosen],
            target=None if self.target is None else self.target[chosen],
            guides=None if self.guides is None else {name: rows[chosen] for name, rows in self.guides.items()},
            rows=None if self.rows is None else self.rows.select(chosen),
        )


class Method(nn.Module, ABC):
    """A loss with its needs. A module, so that frozen prototypes move between devices and into checkpoints."""

    has_target: ClassVar[bool] = True  # a slow copy of the online network gives targets, which go into the bank
    has_predictor: ClassVar[bool] = False  # the online network ends in a predictor
    unit_output: ClassVar[bool] = True  # the online output is scaled to unit length
    uses_labels: bool = False
    uses_guides: bool = False
    remembers: Literal["nothing", "embeddings", "clusters"] = "nothing"  # of all videos, see `memory`
    push: Literal["before", "after"] = "before"  # whether a batch stands in the bank when its loss is computed

    @abstractmethod
    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """The loss of each example. Random draws come from `generator`, which is the same in every process."""

    def watch(self, batch: Embedded, banks: Banks | None) -> Facts:
        """What a person wants to see of this batch. Draws nothing, changes nothing."""
        return {}


def free_purity(batch: Embedded, banks: Banks, *, k: int = 5) -> Facts:
    """How pure the k nearest rows of all are, whatever the method: {} without labels."""
    assert batch.target is not None and batch.rows is not None
    bank = banks.everyone
    found = nearest(batch.target, bank.rows("target"), k + 1)  # the target itself does not count
    share = purity(found, batch.true_labels, bank.who("true_labels"), own_rows=batch.rows.everyone)
    return {} if share is None else {"purity_free": share}
