"""The banks of a run: one for all examples and, for semi-supervised CMSF, a second one for labeled examples only."""

# B batch

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covid_cmsf.methods.bank import Bank


@dataclass(frozen=True)
class OwnRows:
    """Where a batch's targets stand in the banks (B,); -1 where an example is not in that bank."""

    everyone: Tensor
    labeled: Tensor | None = None

    def select(self, chosen: Tensor | slice) -> "OwnRows":
        """Those of some examples of the batch."""
        return OwnRows(self.everyone[chosen], None if self.labeled is None else self.labeled[chosen])


class Banks(nn.Module):
    """`everyone` holds all examples; `labeled` (None unless it has rows) those whose label is known."""

    def __init__(self, num_rows: int, sizes: Mapping[str, int], *, num_labeled_rows: int = 0) -> None:
        super().__init__()
        self.everyone = Bank(num_rows, sizes)
        self.labeled = Bank(num_labeled_rows, sizes) if num_labeled_rows else None

    def push_(
        self,
        embeddings: Mapping[str, Tensor],
        *,
        videos: Tensor,
        sources: Tensor,
        labels: Tensor,
        true_labels: Tensor | None = None,
    ) -> OwnRows:
        """Writes a batch into the banks it belongs to; the arguments are those of `Bank.push_`."""
        true_labels = labels if true_labels is None else true_labels
        who = {"videos": videos, "sources": sources, "labels": labels, "true_labels": true_labels}
        rows = self.everyone.push_(embeddings, **who)
        if self.labeled is None:
            return OwnRows(rows)
        known, in_labeled = labels >= 0, torch.full_like(rows, -1)
        if known.any():
            part = {name: values[known] for name, values in embeddings.items()}
            in_labeled[known] = self.labeled.push_(part, **{name: numbers[known] for name, numbers in who.items()})
        return OwnRows(rows, in_labeled)
