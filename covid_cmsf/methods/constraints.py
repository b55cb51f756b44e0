"""Constraints: which entries of the memory bank may be neighbors of a sample. The C of CMSF.

| constraint        | entries that may be neighbors                         | method                            |
|-------------------|-------------------------------------------------------|-----------------------------------|
| `Unconstrained`   | all                                                   | MSF                               |
| `SelfConstraint`  | the sample's own target                               | BYOL in one direction             |
| `LabelConstraint` | entries with the sample's label (or cluster)          | supervised CMSF, CMSF-KM          |
| `GuideConstraint` | the n nearest entries in the embedding of the guides  | cross-modal CMSF, CMSF-2Q         |

A constraint answers one question for a `Query`: what is the mean of the k nearest entries that it allows?
"""

# B batch, M bank entries, D embedding, N candidates, K neighbors

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from torch import Tensor

from covid_cmsf.methods.diagnostics import mask_purity, overlap, purity
from covid_cmsf.methods.memory_bank import MemoryBank
from covid_cmsf.methods.neighbors import (
    Neighbors,
    masked_mean,
    nearest,
    nearest_among,
    nearest_same_label,
    neighbor_mean,
)

K = int | Literal["all"]
CombineCandidates = Literal["union", "intersection"]
UNLIMITED = 2**31 - 1  # `all` as a number of neighbors


@dataclass(frozen=True)
class Query:
    """The samples whose neighbors are searched, with their own entries in the bank.

    Example:
        >>> bank = cc.MemoryBank(8, rgb=4)
        >>> indices = bank.push_(rgb=torch.eye(4), videos=torch.arange(4))
        >>> query = cc.Query.from_bank(bank, indices, include_target=False)
        >>> neighbors = cc.Unconstrained().nearest(query, bank, k=2)
    """

    target: Tensor  # (B, D) unit vectors
    indices: Tensor  # (B,) the samples' own entries in the bank, -1 where there is none
    sources: Tensor  # (B,)
    labels: Tensor  # (B,) -1: unknown
    guides: Mapping[str, Tensor] = field(default_factory=dict)  # bank column: (B, D') unit vectors
    include_target: bool = True  # the own entry may be a neighbor
    include_siblings: bool = True  # other entries of the same source may be neighbors

    @classmethod
    def from_bank(cls, bank: MemoryBank, indices: Tensor, **options: bool) -> "Query":
        """Look up everything about the samples that were pushed to `indices` (B,) last."""
        first, *others = bank.columns
        return cls(
            target=bank.embeddings(first)[indices],
            indices=indices,
            sources=bank.ids("sources")[indices],
            labels=bank.ids("labels")[indices],
            guides={name: bank.embeddings(name)[indices] for name in others},
            **options,
        )

    def forbidden(self, bank: MemoryBank) -> Tensor | None:
        """(B, M): True for entries that no constraint may use; None when there are none."""
        if self.include_target and self.include_siblings:
            return None
        entries = torch.arange(len(bank), device=self.indices.device)
        own = entries[None, :] == self.indices[:, None]
        sibling = (bank.ids("sources")[None, :] == self.sources[:, None]) & ~own
        return (own & (not self.include_target)) | (sibling & (not self.include_siblings))


class Constraint(ABC):
    """Which entries of a memory bank may be neighbors of a sample. Implement `nearest` for a constraint of your own.

    Example:
        >>> class SameVideo(cc.Constraint):
        ...     def nearest(self, query, bank, k):
        ...         other = bank.ids("sources")[None, :] != query.sources[:, None]
        ...         return cc.nearest(query.target, bank.targets, k, forbidden=other)
        >>> criterion = cc.MeanShiftLoss(k=5, constraint=SameVideo())
    """

    uses_labels: ClassVar[bool] = False
    uses_guides: ClassVar[bool] = False

    @abstractmethod
    def nearest(self, query: Query, bank: MemoryBank, k: int) -> Neighbors:
        """Return the k nearest allowed entries of each sample, by the similarity of the targets."""

    def mean(self, query: Query, bank: MemoryBank, k: K) -> tuple[Tensor, Tensor]:
        """Return the mean (B, D) of the k nearest allowed entries, or of all of them, and their number (B,)."""
        return neighbor_mean(bank.targets, self.nearest(query, bank, UNLIMITED if k == "all" else k))

    def metrics(
        self, query: Query, bank: MemoryBank, k: K, num_neighbors: int, true_labels: Tensor
    ) -> dict[str, float]:
        """Return diagnostics of the constraint, of `num_neighbors` neighbors where k is 1 or all."""
        return {}


class Unconstrained(Constraint):
    """Allow all entries: MSF (Koohpayegani et al. 2021).

    Example:
        >>> criterion = cc.MeanShiftLoss(k=10, constraint=cc.Unconstrained())
    """

    def nearest(self, query: Query, bank: MemoryBank, k: int) -> Neighbors:
        return nearest(query.target, bank.targets, k, forbidden=query.forbidden(bank))

    def mean(self, query: Query, bank: MemoryBank, k: K) -> tuple[Tensor, Tensor]:
        if k != "all":
            return super().mean(query, bank, k)
        allowed = torch.ones(len(query.indices), len(bank), dtype=torch.bool, device=query.indices.device)
        return masked_mean(bank.targets, _without(allowed, query.forbidden(bank)))


class SelfConstraint(Constraint):
    """Allow only the sample's own target: BYOL in one direction.

    Example:
        >>> criterion = cc.MeanShiftLoss(k=1, constraint=cc.SelfConstraint())
    """

    def nearest(self, query: Query, bank: MemoryBank, k: int) -> Neighbors:
        return Neighbors(query.indices[:, None])


class LabelConstraint(Constraint):
    """Allow entries with the sample's label: supervised CMSF. A sample without a label (-1) has no neighbors.

    Push the labels with the targets: `bank.push_(rgb=..., videos=..., labels=labels)`.

    Example:
        >>> criterion = cc.MeanShiftLoss(k="all", constraint=cc.LabelConstraint())
    """

    uses_labels = True

    def nearest(self, query: Query, bank: MemoryBank, k: int) -> Neighbors:
        return nearest_same_label(
            query.target,
            bank.targets,
            k,
            labels=query.labels,
            bank_labels=bank.ids("labels"),
            forbidden=query.forbidden(bank),
        )

    def mean(self, query: Query, bank: MemoryBank, k: K) -> tuple[Tensor, Tensor]:
        if k != "all":
            return super().mean(query, bank, k)
        forbidden = query.forbidden(bank)
        if forbidden is not None:
            return masked_mean(bank.targets, self.allowed(query, bank))
        # One mean per class instead of one per sample.
        classes, inverse = query.labels.unique(return_inverse=True)
        member = (classes[:, None] == bank.ids("labels")[None, :]) & (classes >= 0)[:, None]  # (classes, M)
        means, counts = masked_mean(bank.targets, member)
        return means[inverse], counts[inverse]

    def allowed(self, query: Query, bank: MemoryBank) -> Tensor:
        """(B, M): True for the entries that may be neighbors."""
        same = (bank.ids("labels")[None, :] == query.labels[:, None]) & (query.labels >= 0)[:, None]
        return _without(same, query.forbidden(bank))

    def metrics(
        self, query: Query, bank: MemoryBank, k: K, num_neighbors: int, true_labels: Tensor
    ) -> dict[str, float]:
        """Return the purity of the neighbors: how far the labels that are learned from are the true ones."""
        bank_labels = bank.ids("true_labels")
        if len(query.indices) and k != "all":
            found = self.nearest(query, bank, num_neighbors)
            value = purity(found, true_labels, bank_labels, own_indices=query.indices)
        else:
            value = mask_purity(self.allowed(query, bank), true_labels, bank_labels, own_indices=query.indices)
        return {} if value is None else {"purity": value}


class GuideConstraint(Constraint):
    """Allow the n nearest entries in a frozen guide's embedding, its candidates: cross-modal CMSF.

    Args:
        columns: the guides' columns of the bank, by default all but the first.
        n: candidates that each guide proposes.
        combine: the union or the intersection of several guides' candidates.

    Example:
        >>> criterion = cc.MeanShiftLoss(k=5, constraint=cc.GuideConstraint("flow", n=10))
    """

    uses_guides = True

    def __init__(
        self, columns: str | Sequence[str] | None = None, *, n: int = 10, combine: CombineCandidates = "union"
    ) -> None:
        if n < 1:
            raise ValueError(f"n is {n}; a guide proposes at least 1 candidate")
        self.columns = [columns] if isinstance(columns, str) else columns
        self.n, self.combine = n, combine

    def candidates(self, query: Query, bank: MemoryBank) -> Neighbors:
        """Return the entries (B, N) that the guides propose, -1 where there are fewer."""
        forbidden = query.forbidden(bank)
        columns = list(query.guides) if self.columns is None else self.columns
        if not columns or not set(columns) <= set(query.guides):
            known = ", ".join(query.guides) or "none"
            raise ValueError(f"guide columns {', '.join(columns) or 'none'}: those of the memory bank are {known}")
        first, *others = (
            nearest(query.guides[name], bank.embeddings(name), self.n, forbidden=forbidden).indices for name in columns
        )
        for other in others:
            first = _combine(first, other, self.combine)
        return Neighbors(first)

    def nearest(self, query: Query, bank: MemoryBank, k: int) -> Neighbors:
        return nearest_among(query.target, bank.targets, k, self.candidates(query, bank).indices)

    def metrics(
        self, query: Query, bank: MemoryBank, k: K, num_neighbors: int, true_labels: Tensor
    ) -> dict[str, float]:
        """Return the purity of neighbors and candidates, and how far target and guides agree."""
        candidates = self.candidates(query, bank)
        found = {
            "purity": nearest_among(query.target, bank.targets, num_neighbors, candidates.indices),
            "purity_candidates": candidates,
        }
        own_nearest = Unconstrained().nearest(query, bank, self.n)
        values = {"agreement": overlap(own_nearest, candidates)}
        for name, neighbors in found.items():
            value = purity(neighbors, true_labels, bank.ids("true_labels"), own_indices=query.indices)
            values |= {} if value is None else {name: value}
        return values


def _without(allowed: Tensor, forbidden: Tensor | None) -> Tensor:
    return allowed if forbidden is None else allowed & ~forbidden


def _combine(first: Tensor, second: Tensor, combine: CombineCandidates) -> Tensor:
    """Return the entries (B, N + N') in either (union) or in both (intersection), none twice."""
    in_first = ((second[:, :, None] == first[:, None, :]) & (second >= 0)[:, :, None]).any(2)  # (B, N')
    if combine == "intersection":
        return torch.where(in_first, second, -1)
    return torch.cat([first, torch.where(in_first, -1, second)], dim=1)
