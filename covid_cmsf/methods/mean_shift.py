"""Mean shift (CMSF eq. 1): pull each online embedding toward its nearest neighbors in the memory bank.

    loss = mean over the batch of the mean over the neighbors z of (2 - 2 v.z)

v is the online prediction; z are the k nearest entries to the *target* u that a constraint allows. All are unit
vectors, and only v carries a gradient. `MeanShiftLoss` is all of it, for any training loop; the methods below add what
this project's own loop needs: which banks, which diagnostics, and their configuration.
"""

# B batch, M bank entries, D embedding

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from covid_cmsf.methods.base import (
    EmbeddedBatch,
    Method,
    Metrics,
    PerSampleLoss,
    TargetMethodConfig,
    mask_invalid,
)
from covid_cmsf.methods.constraints import (
    CombineCandidates,
    Constraint,
    GuideConstraint,
    K,
    LabelConstraint,
    Query,
    SelfConstraint,
    Unconstrained,
)
from covid_cmsf.methods.diagnostics import purity
from covid_cmsf.methods.instance_memory import PREVIOUS_COLUMN
from covid_cmsf.methods.memory_bank import MemoryBank, MemoryBanks

DIAGNOSTIC_K = 5  # neighbors in the diagnostics where k is 1 or `all`


def mean_shift_loss(online: Tensor, means: Tensor, counts: Tensor) -> PerSampleLoss:
    """Return 2 - 2 v.m for online embeddings v (B, D) and the means m (B, D) of their `counts` (B,) neighbors.

    That is the mean of 2 - 2 v.z over the neighbors z: the means are not normalized.
    """
    return mask_invalid(2 - 2 * (online.float() * means).sum(1), counts > 0)


class MeanShiftLoss(nn.Module):
    """CMSF eq. 1 under a constraint: the mean of 2 - 2 v.z over the k nearest allowed entries z of each sample.

    Push the targets into the bank first; the loss never changes it. Only the online embeddings get a gradient.

    Args:
        k: neighbors that are averaged, or "all" that the constraint allows.
        constraint: which entries may be neighbors; all (MSF) when left out.
        include_target: the sample's own target may be a neighbor.
        include_siblings: entries of the same source may be neighbors.

    Example:
        >>> bank = cc.MemoryBank(8192, rgb=256, flow=128)
        >>> criterion = cc.MeanShiftLoss(k=5, constraint=cc.GuideConstraint("flow", n=10))
        >>> online, target, guide = (torch.nn.functional.normalize(torch.randn(4, dim)) for dim in (256, 256, 128))
        >>> indices = bank.push_(rgb=target, flow=guide, videos=torch.arange(4))
        >>> criterion(online, bank, indices)
        tensor(...)
    """

    def __init__(
        self,
        k: K = 5,
        constraint: Constraint | None = None,
        *,
        include_target: bool = True,
        include_siblings: bool = True,
    ) -> None:
        super().__init__()
        if k != "all" and k < 1:
            raise ValueError(f"k is {k}; at least 1 neighbor is averaged, or `all`")
        self.k, self.constraint = k, constraint or Unconstrained()
        self.include_target, self.include_siblings = include_target, include_siblings

    def forward(self, online: Tensor, bank: MemoryBank, indices: Tensor) -> Tensor:
        """Return the mean loss of online embeddings (B, D), whose targets are the bank's entries `indices` (B,)."""
        options = {"include_target": self.include_target, "include_siblings": self.include_siblings}
        return self.per_sample(online, bank, Query.from_bank(bank, indices, **options)).mean()

    def per_sample(self, online: Tensor, bank: MemoryBank, query: Query) -> PerSampleLoss:
        """Return the loss (B,) of each sample. A sample without neighbors does not count."""
        return mean_shift_loss(online, *self.constraint.mean(query, bank, self.k))


class MeanShift(Method):
    """The mean-shift loss as a method of the training loop.

    With `half_unconstrained` the loss is the average of the constrained and of the unconstrained one, as in the
    follow-up paper's CMSF-2Q and CMSF-KM.
    """

    has_predictor = True

    def __init__(
        self,
        loss: MeanShiftLoss,
        *,
        half_unconstrained: bool = False,
        memory_kind: Literal["none", "embeddings", "clusters"] = "none",
    ) -> None:
        super().__init__()
        self.loss = loss
        self.unconstrained_loss = MeanShiftLoss(
            loss.k, include_target=loss.include_target, include_siblings=loss.include_siblings
        )
        self.half_unconstrained, self.memory_kind = half_unconstrained, memory_kind
        # Clusters and earlier embeddings are the method's own: no labels, no guides from outside.
        own = memory_kind != "none"
        self.uses_labels = self.loss.constraint.uses_labels and not own
        self.uses_guides = self.loss.constraint.uses_guides and not own

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return the mean of 2 - 2 v.z over each sample's neighbors z."""
        assert banks is not None and batch.bank_indices is not None
        query = self._query(batch, batch.bank_indices.main)
        constrained = self.loss.per_sample(batch.online, banks.main, query)
        if not self.half_unconstrained:
            return constrained
        free = self.unconstrained_loss.per_sample(batch.online, banks.main, query)
        # A sample without a cluster yet has no constrained half.
        values = torch.where(constrained.valid, (constrained.values + free.values) / 2, free.values)
        return PerSampleLoss(values, free.valid)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return the true-label purity of the neighbors with and without the constraint, and the constraint's own."""
        assert banks is not None and batch.bank_indices is not None
        return self._metrics(batch, banks.main, batch.bank_indices.main) | self._free_purity(batch, banks)

    def _query(self, batch: EmbeddedBatch, indices: Tensor) -> Query:
        assert batch.target is not None
        return Query(
            target=batch.target,
            indices=indices,
            sources=batch.sources,
            labels=batch.labels,
            guides=batch.guides or {},
            include_target=self.loss.include_target,
            include_siblings=self.loss.include_siblings,
        )

    def _num_neighbors(self) -> int:
        return DIAGNOSTIC_K if self.loss.k in (1, "all") else int(self.loss.k)

    def _metrics(self, batch: EmbeddedBatch, bank: MemoryBank, indices: Tensor) -> Metrics:
        query, k = self._query(batch, indices), self.loss.k
        return self.loss.constraint.metrics(query, bank, k, self._num_neighbors(), batch.true_labels)

    def _free_purity(self, batch: EmbeddedBatch, banks: MemoryBanks) -> Metrics:
        assert batch.bank_indices is not None
        bank, query = banks.main, self._query(batch, batch.bank_indices.main)
        found = Unconstrained().nearest(query, bank, self._num_neighbors())
        value = purity(found, batch.true_labels, bank.ids("true_labels"), own_indices=query.indices)
        return {} if value is None else {"purity_free": value}


class SemiSupervisedMeanShift(MeanShift):
    """Two banks: labeled samples have constrained neighbors in the bank of labeled samples, others are as in MSF."""

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return the loss of each sample, in the bank it belongs to."""
        assert banks is not None and banks.labeled is not None
        assert batch.bank_indices is not None and batch.bank_indices.labeled is not None
        has_label = batch.labels >= 0
        values, valid = batch.online.float().sum(1) * 0, torch.zeros_like(has_label)
        ordered, num_labeled = has_label.int().sort(descending=True, stable=True).indices, int(has_label.sum())
        for rows, bank, indices, loss in (
            (ordered[:num_labeled], banks.labeled, batch.bank_indices.labeled, self.loss),
            (ordered[num_labeled:], banks.main, batch.bank_indices.main, self.unconstrained_loss),
        ):
            if len(rows):
                chosen = batch.select(rows)
                found = loss.per_sample(chosen.online, bank, self._query(chosen, indices[rows]))
                values = values.index_put((rows,), found.values)
                valid[rows] = found.valid
        return PerSampleLoss(values, valid)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return the purity of the labeled samples' neighbors, and of all samples' without the constraint."""
        assert banks is not None and banks.labeled is not None
        assert batch.bank_indices is not None and batch.bank_indices.labeled is not None
        has_label = batch.labels >= 0
        labeled = self._metrics(batch.select(has_label), banks.labeled, batch.bank_indices.labeled[has_label])
        return labeled | self._free_purity(batch, banks)


class MeanShiftConfig(TargetMethodConfig):
    """What all mean-shift methods share."""

    k: Annotated[int, Field(ge=1)] | Literal["all"] = Field(
        default=5, description="neighbors that are averaged, or `all` that are allowed"
    )
    include_target: bool = Field(default=True, description="the target itself may be a neighbor")
    include_siblings: bool = Field(default=True, description="other clips of the same source may be neighbors")

    def build_loss(self, constraint: Constraint | None = None) -> MeanShiftLoss:
        """Return the loss with these options under a constraint."""
        return MeanShiftLoss(
            self.k, constraint, include_target=self.include_target, include_siblings=self.include_siblings
        )


class MsfConfig(MeanShiftConfig):
    """Mean shift without a constraint (Koohpayegani et al. 2021)."""

    name: Literal["msf"]

    @property
    def display_name(self) -> str:
        return f"MSF k={self.k}"

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return MeanShift(self.build_loss())


class ByolConfig(TargetMethodConfig):
    """Toward the own target alone: BYOL in one direction."""

    name: Literal["byol_asym"]
    title: ClassVar[str] = "BYOL-asym"
    bank_size: int = Field(default=8192, ge=1, description="entries of the bank, which serves diagnostics only")

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return MeanShift(MeanShiftLoss(1, SelfConstraint()))


class CmsfConfig(MeanShiftConfig):
    """Constrained mean shift, the paper's method."""

    name: Literal["cmsf"]
    constraint: Literal["guide", "label", "two_bank"] = Field(
        default="guide",
        description="guide: candidates of a frozen network; label: same label; two_bank: semi-supervised",
    )
    num_candidates: int = Field(default=10, ge=1, description="n: candidates that each guide proposes")
    combine: CombineCandidates = Field(default="union", description="candidates of several guides: of any or of all")
    labeled_bank_size: int = Field(default=8192, ge=1, description="entries of the second bank of `two_bank`")

    @property
    def display_name(self) -> str:
        return f"CMSF {self.num_candidates}/{self.k}" if self.uses_guides else f"CMSF labels, k={self.k}"

    @property
    def max_guides(self) -> int | None:
        return None if self.constraint == "guide" else 0

    @property
    def constraint_name(self) -> str:
        return "" if self.constraint == "guide" else "labels"

    @property
    def second_bank_size(self) -> int:
        return self.labeled_bank_size if self.constraint == "two_bank" else 0

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        if self.constraint == "guide":
            return MeanShift(self.build_loss(GuideConstraint(n=self.num_candidates, combine=self.combine)))
        loss = self.build_loss(LabelConstraint())
        return MeanShift(loss) if self.constraint == "label" else SemiSupervisedMeanShift(loss)


class Cmsf2qConfig(MeanShiftConfig):
    """CMSF-2Q: the guide is the sample's own embedding of the epoch before, kept in a second queue."""

    name: Literal["cmsf_2q"]
    title: ClassVar[str] = "CMSF-2Q"
    extra_columns: ClassVar[tuple[str, ...]] = (PREVIOUS_COLUMN,)
    num_candidates: int = Field(default=5, ge=1, description="n: candidates from the second queue")

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        loss = self.build_loss(GuideConstraint(PREVIOUS_COLUMN, n=self.num_candidates))
        return MeanShift(loss, half_unconstrained=True, memory_kind="embeddings")


class CmsfKmConfig(MeanShiftConfig):
    """CMSF-KM: neighbors are of the sample's cluster, by k-means after every epoch."""

    name: Literal["cmsf_km"]
    title: ClassVar[str] = "CMSF-KM"
    num_clusters: int = Field(default=50_000, ge=1, description="clusters of k-means")
    iterations: int = Field(default=20, ge=1, description="iterations of k-means")

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        method = MeanShift(self.build_loss(LabelConstraint()), half_unconstrained=True, memory_kind="clusters")
        method.num_clusters, method.kmeans_iterations = self.num_clusters, self.iterations
        return method
