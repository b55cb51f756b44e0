"""Which rows of the bank may be neighbors: the C of CMSF.

| constraint | allowed rows                                             | method                    |
|------------|----------------------------------------------------------|---------------------------|
| none       | all                                                      | MSF                       |
| self       | the target itself                                        | BYOL, one direction       |
| label      | rows with the same label                                 | supervised CMSF           |
| guide      | the n nearest rows in the frozen guide's column          | cross-modal CMSF          |

Each is a function from a batch and the bank to neighbors. `Exclusions` says who is left out in any of them.
"""

# B batch, M bank rows, N candidates, K neighbors

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.methods.bank import Bank
from covid_cmsf.methods.neighbors import Neighbors, nearest, nearest_among, nearest_same_label


@dataclass(frozen=True)
class Exclusions:
    """Rows that are nobody's neighbors: the target's own row, rows of the same footage (siblings)."""

    own_rows: Tensor  # (B,) where the batch's targets stand in the bank
    sources: Tensor  # (B,)
    target: bool = False
    siblings: bool = False

    def mask(self, bank: Bank) -> Tensor | None:
        """(B, M): True where a row may not be used. The target's own row is not its sibling."""
        if not (self.target or self.siblings):
            return None
        rows = torch.arange(len(bank), device=self.own_rows.device)
        own = rows[None, :] == self.own_rows[:, None]
        sibling = (bank.who("sources")[None, :] == self.sources[:, None]) & ~own
        return (own & self.target) | (sibling & self.siblings)


def unconstrained(targets: Tensor, bank: Bank, k: int, exclusions: Exclusions) -> Neighbors:
    """MSF: the k nearest rows of all."""
    return nearest(targets, bank.rows("target"), k, forbidden=exclusions.mask(bank))


def only_self(exclusions: Exclusions) -> Neighbors:
    """The target itself: BYOL in one direction."""
    return Neighbors(exclusions.own_rows[:, None])


def same_label(targets: Tensor, bank: Bank, k: int, exclusions: Exclusions, *, labels: Tensor) -> Neighbors:
    """The k nearest rows with the same label."""
    rows, theirs = bank.rows("target"), bank.who("labels")
    return nearest_same_label(targets, rows, k, labels=labels, bank_labels=theirs, forbidden=exclusions.mask(bank))


def guided(
    targets: Tensor,
    bank: Bank,
    k: int,
    exclusions: Exclusions,
    *,
    guides: Sequence[tuple[str, Tensor]],
    num_candidates: int,
    join: Literal["union", "intersection"] = "union",
) -> tuple[Neighbors, Tensor]:
    """The k nearest of the rows that the guides vouch for; also those candidates (B, N), -1 where there is none.

    `guides` are (column of the bank, the guide's embeddings (B, D) of this batch).
    """
    forbidden = exclusions.mask(bank)
    sets = [
        nearest(embedding, bank.rows(column), num_candidates, forbidden=forbidden).rows for column, embedding in guides
    ]
    candidates = sets[0]
    for other in sets[1:]:
        candidates = _join(candidates, other, join)
    return nearest_among(targets, bank.rows("target"), k, candidates), candidates


def _join(first: Tensor, second: Tensor, join: str) -> Tensor:
    """(B, N) and (B, N') -> rows in either (union) or in both (intersection), none twice."""
    known = ((second[:, :, None] == first[:, None, :]) & (second >= 0)[:, :, None]).any(2)  # (B, N')
    if join == "intersection":
        return torch.where(known, second, -1)
    return torch.cat([first, torch.where(known, -1, second)], dim=1)
