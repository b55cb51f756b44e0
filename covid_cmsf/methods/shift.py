"""MeanShift: one method, five constraints.

| constraint | method                    | neighbors                                                              |
|------------|---------------------------|-------------------------------------------------------------------------|
| none       | MSF                       | the k nearest rows                                                      |
| self       | BYOL, one direction       | the target itself                                                       |
| label      | supervised CMSF           | the k nearest rows with the same label                                  |
| two_bank   | semi-supervised CMSF      | labeled: as `label`, in the bank of labeled rows; others: as `none`   |
| guide      | cross-modal CMSF          | the k nearest among the n rows that the guides vouch for                |
| previous   | CMSF-2Q                   | as `guide`; the guide is the own embedding of the epoch before          |
| cluster    | CMSF-KM                   | as `label`; the label is the cluster after the epoch before             |

The last two are of the follow-up paper: half of their loss is that of `none`.
"""

# B batch, M bank rows, K neighbors, N candidates

from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.methods.bank import Bank
from covid_cmsf.methods.banks import Banks
from covid_cmsf.methods.constraints import Exclusions, guided, only_self, same_label, unconstrained
from covid_cmsf.methods.diagnostics import mask_purity, overlap, purity
from covid_cmsf.methods.example_losses import ExampleLosses
from covid_cmsf.methods.mean_shift import allowed_mean_loss, class_mean_loss, mean_shift_loss
from covid_cmsf.methods.method import Embedded, Facts, Method
from covid_cmsf.methods.neighbors import Neighbors

Constraint = Literal["none", "self", "label", "two_bank", "guide", "previous", "cluster"]
SEARCHED_AS = {"previous": "guide", "cluster": "label"}
REMEMBERS: dict[str, Literal["embeddings", "clusters"]] = {"previous": "embeddings", "cluster": "clusters"}
Join = Literal["union", "intersection"]
WATCHED = 5  # neighbors that are looked at when k is 1 or `all`


class MeanShift(Method):
    """CMSF eq. 1 under a constraint. `k` is a number of neighbors or "all" allowed ones."""

    has_predictor = True

    def __init__(
        self,
        *,
        k: int | Literal["all"],
        constraint: Constraint = "none",
        num_candidates: int = 10,
        join: Join = "union",
        include_target: bool = True,
        include_siblings: bool = True,
    ) -> None:
        super().__init__()
        self.k, self.num_candidates, self.join = k, num_candidates, join
        self.constraint = SEARCHED_AS.get(constraint, constraint)
        self.half_free = constraint in SEARCHED_AS
        self.remembers = REMEMBERS.get(constraint, "nothing")
        self.include_target, self.include_siblings = include_target, include_siblings
        self.uses_labels = constraint in ("label", "two_bank")
        self.uses_guides = constraint == "guide"

    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """The mean of 2 - 2 v.z over each example's neighbors z."""
        assert banks is not None and batch.rows is not None
        if self.constraint != "two_bank":
            found = self._losses(batch, banks.everyone, batch.rows.everyone, self.constraint)
            if not self.half_free:
                return found
            free = self._losses(batch, banks.everyone, batch.rows.everyone, "none")
            # Without a cluster yet there is no constrained half.
            values = torch.where(found.counted, (found.values + free.values) / 2, free.values)
            return ExampleLosses(values, free.counted)
        assert banks.labeled is not None and batch.rows.labeled is not None
        known = batch.labels >= 0
        values, counted = batch.online.float().sum(1) * 0, torch.zeros_like(known)
        for part, bank, rows, constraint in (
            (known, banks.labeled, batch.rows.labeled, "label"),
            (~known, banks.everyone, batch.rows.everyone, "none"),
        ):
            if part.any():
                found = self._losses(batch.select(part), bank, rows[part], constraint)
                values = values.index_put((part,), found.values)
                counted[part] = found.counted
        return ExampleLosses(values, counted)

    def _losses(self, batch: Embedded, bank: Bank, rows: Tensor, constraint: str) -> ExampleLosses:
        online, targets = batch.online, bank.rows("target")
        exclusions = self._exclusions(batch, rows)
        if self.k != "all" or constraint in ("self", "guide"):
            neighbors, _ = self._neighbors(batch, bank, exclusions, constraint, self._number())
            return mean_shift_loss(online, targets, neighbors)
        forbidden = exclusions.mask(bank)
        if constraint == "label" and forbidden is None:
            return class_mean_loss(online, targets, labels=batch.labels, bank_labels=bank.who("labels"))
        allowed = _allowed(batch, bank, constraint)
        return allowed_mean_loss(online, targets, allowed if forbidden is None else allowed & ~forbidden)

    def _number(self) -> int:
        """k, or of `all` the number of candidates that there can be."""
        return 2**31 - 1 if self.k == "all" else self.k

    def _exclusions(self, batch: Embedded, rows: Tensor) -> Exclusions:
        return Exclusions(rows, batch.sources, target=not self.include_target, siblings=not self.include_siblings)

    def _neighbors(
        self, batch: Embedded, bank: Bank, exclusions: Exclusions, constraint: str, k: int
    ) -> tuple[Neighbors, Neighbors]:
        """The neighbors, and with guides the candidates among which they were sought (else the neighbors again)."""
        assert batch.target is not None
        if constraint == "self":
            return (found := only_self(exclusions)), found
        if constraint == "label":
            return (found := same_label(batch.target, bank, k, exclusions, labels=batch.labels)), found
        if constraint == "none":
            return (found := unconstrained(batch.target, bank, k, exclusions)), found
        assert batch.guides
        found, candidates = guided(
            batch.target,
            bank,
            k,
            exclusions,
            guides=list(batch.guides.items()),
            num_candidates=self.num_candidates,
            join=self.join,
        )
        return found, Neighbors(candidates)

    @torch.no_grad()
    def watch(self, batch: Embedded, banks: Banks | None) -> Facts:
        """True-label purity of the neighbors with and without the constraint, agreement with the guides."""
        assert banks is not None and batch.rows is not None and batch.target is not None
        bank, rows = banks.everyone, batch.rows.everyone
        exclusions, true = self._exclusions(batch, rows), bank.who("true_labels")
        k = WATCHED if self.k in (1, "all") else int(self.k)
        sets: dict[str, Neighbors] = {"purity_free": unconstrained(batch.target, bank, k, exclusions)}
        facts: Facts = {}
        if self.constraint == "guide":
            sets["purity"], sets["purity_candidates"] = self._neighbors(batch, bank, exclusions, "guide", k)
            near = unconstrained(batch.target, bank, self.num_candidates, exclusions)
            facts["agreement"] = overlap(near, sets["purity_candidates"])
        shares = {name: purity(found, batch.true_labels, true, own_rows=rows) for name, found in sets.items()}
        if self.constraint == "label":
            shares["purity"] = self._label_purity(batch, bank, rows, k)
        elif self.constraint == "two_bank":
            assert banks.labeled is not None and batch.rows.labeled is not None
            known = batch.labels >= 0
            shares["purity"] = self._label_purity(batch.select(known), banks.labeled, batch.rows.labeled[known], k)
        return facts | {name: share for name, share in shares.items() if share is not None}

    def _label_purity(self, batch: Embedded, bank: Bank, rows: Tensor, k: int) -> float | None:
        """Of the k nearest rows with the same label, or with `all` of all of them."""
        assert batch.target is not None
        true, exclusions = bank.who("true_labels"), self._exclusions(batch, rows)
        if len(rows) and self.k != "all":
            found = same_label(batch.target, bank, k, exclusions, labels=batch.labels)
            return purity(found, batch.true_labels, true, own_rows=rows)
        allowed, forbidden = _allowed(batch, bank, "label"), exclusions.mask(bank)
        allowed = allowed if forbidden is None else allowed & ~forbidden
        return mask_purity(allowed, batch.true_labels, true, own_rows=rows)


def _allowed(batch: Embedded, bank: Bank, constraint: str) -> Tensor:
    """(B, M): the rows that a constraint allows, before exclusions."""
    if constraint == "none":
        return torch.ones(len(batch.labels), len(bank), dtype=torch.bool, device=batch.labels.device)
    assert constraint == "label"
    return (bank.who("labels")[None, :] == batch.labels[:, None]) & (batch.labels >= 0)[:, None]
