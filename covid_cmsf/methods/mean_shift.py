"""Mean shift (CMSF eq. 1): pull each online embedding toward its neighbors in the bank.

    loss = mean over the batch of the mean over the neighbors z of (2 - 2 v.z)

v is the online prediction, z are neighbors of the *target* u; both are unit vectors. Only v carries a gradient.
"""

from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.methods.base import EmbeddedBatch, Method, Metrics, PerSampleLoss, mask_invalid
from covid_cmsf.methods.constraints import Exclusions, guided, only_self, same_label, unconstrained
from covid_cmsf.methods.diagnostics import mask_purity, overlap, purity
from covid_cmsf.methods.memory_bank import MemoryBank, MemoryBanks
from covid_cmsf.methods.neighbors import Neighbors, slices

# B batch, M bank entries, D embedding, K neighbors


def mean_shift_loss(online: Tensor, bank: Tensor, neighbors: Neighbors) -> PerSampleLoss:
    """The loss of online embeddings (B, D) against their neighbors among the entries of `bank` (M, D).

    Fewer than K neighbors are averaged as they are; a sample without any does not count.
    """
    return _loss_to_means(online, *neighbor_means(bank, neighbors))


def neighbor_means(bank: Tensor, neighbors: Neighbors) -> tuple[Tensor, Tensor]:
    """The mean of each sample's neighbors (B, D), not normalized, and how many they are (B,)."""
    found = neighbors.found
    gathered = bank[neighbors.indices.clamp(min=0)] * found.unsqueeze(2)  # (B, K, D)
    counts = found.sum(1)
    return gathered.sum(1) / counts.clamp(min=1).unsqueeze(1), counts


def class_mean_loss(online: Tensor, bank: Tensor, *, labels: Tensor, bank_labels: Tensor) -> PerSampleLoss:
    """Top-all: the neighbors are all entries with the sample's label, so the loss is 2 - 2 v.(their mean)."""
    classes, inverse = labels.unique(return_inverse=True)
    mask = (classes[:, None] == bank_labels[None, :]) & (classes >= 0)[:, None]  # (classes, M)
    means, counts = _masked_means(mask, bank)
    return _loss_to_means(online, means[inverse], counts[inverse])


def allowed_mean_loss(online: Tensor, bank: Tensor, allowed: Tensor) -> PerSampleLoss:
    """Top-all of any constraint: the neighbors are the entries where `allowed` (B, M) is True."""
    return _loss_to_means(online, *_masked_means(allowed, bank))


def _masked_means(mask: Tensor, bank: Tensor) -> tuple[Tensor, Tensor]:
    """Masks (N, M) -> the means (N, D) of the entries in each, and how many they are (N,)."""
    counts = mask.sum(1)
    sums = torch.cat([mask[chunk].float() @ bank for chunk in slices(len(mask), 4 * len(bank))])
    return sums / counts.clamp(min=1).unsqueeze(1), counts


def _loss_to_means(online: Tensor, means: Tensor, counts: Tensor) -> PerSampleLoss:
    """The mean of 2 - 2 v.z over neighbors z is 2 - 2 v.(mean of z)."""
    return mask_invalid(2 - 2 * (online.float() * means).sum(1), counts > 0)


# MeanShift: one method, five constraints.
#
# | constraint | method                    | neighbors                                                              |
# |------------|---------------------------|-------------------------------------------------------------------------|
# | none       | MSF                       | the k nearest entries                                                   |
# | self       | BYOL, one direction       | the target itself                                                       |
# | label      | supervised CMSF           | the k nearest entries with the same label                               |
# | two_bank   | semi-supervised CMSF      | labeled: as `label`, in the bank of labeled entries; others: as `none`   |
# | guide      | cross-modal CMSF          | the k nearest among the n entries that the guides vouch for             |
# | previous   | CMSF-2Q                   | as `guide`; the guide is the own embedding of the epoch before          |
# | cluster    | CMSF-KM                   | as `label`; the label is the cluster after the epoch before             |
#
# The last two are of the follow-up paper: half of their loss is that of `none`.

# B batch, M bank entries, K neighbors, N candidates


Constraint = Literal["none", "self", "label", "two_bank", "guide", "previous", "cluster"]
BASE_CONSTRAINT = {"previous": "guide", "cluster": "label"}
MEMORY_KINDS: dict[str, Literal["embeddings", "clusters"]] = {"previous": "embeddings", "cluster": "clusters"}
CombineCandidates = Literal["union", "intersection"]
DIAGNOSTIC_K = 5  # neighbors that are looked at when k is 1 or `all`


class MeanShift(Method):
    """CMSF eq. 1 under a constraint. `k` is a number of neighbors or "all" allowed ones."""

    has_predictor = True

    def __init__(
        self,
        *,
        k: int | Literal["all"],
        constraint: Constraint = "none",
        num_candidates: int = 10,
        combine: CombineCandidates = "union",
        include_target: bool = True,
        include_siblings: bool = True,
    ) -> None:
        super().__init__()
        self.k, self.num_candidates, self.combine = k, num_candidates, combine
        self.constraint = BASE_CONSTRAINT.get(constraint, constraint)
        self.half_unconstrained = constraint in BASE_CONSTRAINT
        self.memory_kind = MEMORY_KINDS.get(constraint, "none")
        self.include_target, self.include_siblings = include_target, include_siblings
        self.uses_labels = constraint in ("label", "two_bank")
        self.uses_guides = constraint == "guide"

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """The mean of 2 - 2 v.z over each sample's neighbors z."""
        assert banks is not None and batch.bank_indices is not None
        if self.constraint != "two_bank":
            found = self._losses(batch, banks.main, batch.bank_indices.main, self.constraint)
            if not self.half_unconstrained:
                return found
            free = self._losses(batch, banks.main, batch.bank_indices.main, "none")
            # Without a cluster yet there is no constrained half.
            values = torch.where(found.valid, (found.values + free.values) / 2, free.values)
            return PerSampleLoss(values, free.valid)
        assert banks.labeled is not None and batch.bank_indices.labeled is not None
        has_label = batch.labels >= 0
        values, valid = batch.online.float().sum(1) * 0, torch.zeros_like(has_label)
        for mask, bank, indices, constraint in (
            (has_label, banks.labeled, batch.bank_indices.labeled, "label"),
            (~has_label, banks.main, batch.bank_indices.main, "none"),
        ):
            if mask.any():
                found = self._losses(batch.select(mask), bank, indices[mask], constraint)
                values = values.index_put((mask,), found.values)
                valid[mask] = found.valid
        return PerSampleLoss(values, valid)

    def _losses(self, batch: EmbeddedBatch, bank: MemoryBank, indices: Tensor, constraint: str) -> PerSampleLoss:
        online, targets = batch.online, bank.embeddings("target")
        exclusions = self._exclusions(batch, indices)
        if self.k != "all" or constraint in ("self", "guide"):
            neighbors, _ = self._neighbors(batch, bank, exclusions, constraint, self._max_neighbors())
            return mean_shift_loss(online, targets, neighbors)
        forbidden = exclusions.mask(bank)
        if constraint == "label" and forbidden is None:
            return class_mean_loss(online, targets, labels=batch.labels, bank_labels=bank.ids("labels"))
        allowed = _allowed_mask(batch, bank, constraint)
        return allowed_mean_loss(online, targets, allowed if forbidden is None else allowed & ~forbidden)

    def _max_neighbors(self) -> int:
        """k, or of `all` the number of candidates that there can be."""
        return 2**31 - 1 if self.k == "all" else self.k

    def _exclusions(self, batch: EmbeddedBatch, indices: Tensor) -> Exclusions:
        return Exclusions(indices, batch.sources, target=not self.include_target, siblings=not self.include_siblings)

    def _neighbors(
        self, batch: EmbeddedBatch, bank: MemoryBank, exclusions: Exclusions, constraint: str, k: int
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
            combine=self.combine,
        )
        return found, Neighbors(candidates)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """True-label purity of the neighbors with and without the constraint, agreement with the guides."""
        assert banks is not None and batch.bank_indices is not None and batch.target is not None
        bank, indices = banks.main, batch.bank_indices.main
        exclusions, true = self._exclusions(batch, indices), bank.ids("true_labels")
        k = DIAGNOSTIC_K if self.k in (1, "all") else int(self.k)
        sets: dict[str, Neighbors] = {"purity_free": unconstrained(batch.target, bank, k, exclusions)}
        metrics: Metrics = {}
        if self.constraint == "guide":
            sets["purity"], sets["purity_candidates"] = self._neighbors(batch, bank, exclusions, "guide", k)
            nearest_targets = unconstrained(batch.target, bank, self.num_candidates, exclusions)
            metrics["agreement"] = overlap(nearest_targets, sets["purity_candidates"])
        fractions = {name: purity(found, batch.true_labels, true, own_indices=indices) for name, found in sets.items()}
        if self.constraint == "label":
            fractions["purity"] = self._label_purity(batch, bank, indices, k)
        elif self.constraint == "two_bank":
            assert banks.labeled is not None and batch.bank_indices.labeled is not None
            has_label = batch.labels >= 0
            fractions["purity"] = self._label_purity(
                batch.select(has_label), banks.labeled, batch.bank_indices.labeled[has_label], k
            )
        return metrics | {name: fraction for name, fraction in fractions.items() if fraction is not None}

    def _label_purity(self, batch: EmbeddedBatch, bank: MemoryBank, indices: Tensor, k: int) -> float | None:
        """Of the k nearest entries with the same label, or with `all` of all of them."""
        assert batch.target is not None
        true, exclusions = bank.ids("true_labels"), self._exclusions(batch, indices)
        if len(indices) and self.k != "all":
            found = same_label(batch.target, bank, k, exclusions, labels=batch.labels)
            return purity(found, batch.true_labels, true, own_indices=indices)
        allowed, forbidden = _allowed_mask(batch, bank, "label"), exclusions.mask(bank)
        allowed = allowed if forbidden is None else allowed & ~forbidden
        return mask_purity(allowed, batch.true_labels, true, own_indices=indices)


def _allowed_mask(batch: EmbeddedBatch, bank: MemoryBank, constraint: str) -> Tensor:
    """(B, M): the entries that a constraint allows, before exclusions."""
    if constraint == "none":
        return torch.ones(len(batch.labels), len(bank), dtype=torch.bool, device=batch.labels.device)
    assert constraint == "label"
    return (bank.ids("labels")[None, :] == batch.labels[:, None]) & (batch.labels >= 0)[:, None]
