"""Which entries of the bank may be neighbors: the C of CMSF.

| constraint | allowed entries                                          | method                    |
|------------|----------------------------------------------------------|---------------------------|
| none       | all                                                      | MSF                       |
| self       | the target itself                                        | BYOL, one direction       |
| label      | entries with the same label                              | supervised CMSF           |
| guide      | the n nearest entries in the frozen guide's column       | cross-modal CMSF          |

Each is a function from a batch and the bank to neighbors. `Exclusions` says who is left out in any of them.
"""

# B batch, M bank entries, N candidates, K neighbors

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.methods.memory_bank import MemoryBank
from covid_cmsf.methods.neighbors import Neighbors, nearest, nearest_among, nearest_same_label


@dataclass(frozen=True)
class Exclusions:
    """Entries that are nobody's neighbors: the target's own entry, entries of the same footage (siblings)."""

    own_indices: Tensor  # (B,) where the batch's targets stand in the bank
    sources: Tensor  # (B,)
    target: bool = False
    siblings: bool = False

    def mask(self, bank: MemoryBank) -> Tensor | None:
        """(B, M): True where an entry may not be used. The target's own entry is not its sibling."""
        if not (self.target or self.siblings):
            return None
        indices = torch.arange(len(bank), device=self.own_indices.device)
        own = indices[None, :] == self.own_indices[:, None]
        sibling = (bank.ids("sources")[None, :] == self.sources[:, None]) & ~own
        return (own & self.target) | (sibling & self.siblings)


def unconstrained(targets: Tensor, bank: MemoryBank, k: int, exclusions: Exclusions) -> Neighbors:
    """MSF: the k nearest entries of all."""
    return nearest(targets, bank.embeddings("target"), k, forbidden=exclusions.mask(bank))


def only_self(exclusions: Exclusions) -> Neighbors:
    """The target itself: BYOL in one direction."""
    return Neighbors(exclusions.own_indices[:, None])


def same_label(targets: Tensor, bank: MemoryBank, k: int, exclusions: Exclusions, *, labels: Tensor) -> Neighbors:
    """The k nearest entries with the same label."""
    embeddings, bank_labels = bank.embeddings("target"), bank.ids("labels")
    return nearest_same_label(
        targets, embeddings, k, labels=labels, bank_labels=bank_labels, forbidden=exclusions.mask(bank)
    )


def guided(
    targets: Tensor,
    bank: MemoryBank,
    k: int,
    exclusions: Exclusions,
    *,
    guides: Sequence[tuple[str, Tensor]],
    num_candidates: int,
    combine: Literal["union", "intersection"] = "union",
) -> tuple[Neighbors, Tensor]:
    """The k nearest of the entries that the guides vouch for; also those candidates (B, N), -1 where there is none.

    `guides` are (column of the bank, the guide's embeddings (B, D) of this batch).
    """
    forbidden = exclusions.mask(bank)
    sets = [
        nearest(embedding, bank.embeddings(column), num_candidates, forbidden=forbidden).indices
        for column, embedding in guides
    ]
    candidates = sets[0]
    for other in sets[1:]:
        candidates = _combine(candidates, other, combine)
    return nearest_among(targets, bank.embeddings("target"), k, candidates), candidates


def _combine(first: Tensor, second: Tensor, combine: str) -> Tensor:
    """(B, N) and (B, N') -> entries in either (union) or in both (intersection), none twice."""
    in_first = ((second[:, :, None] == first[:, None, :]) & (second >= 0)[:, :, None]).any(2)  # (B, N')
    if combine == "intersection":
        return torch.where(in_first, second, -1)
    return torch.cat([first, torch.where(in_first, -1, second)], dim=1)
