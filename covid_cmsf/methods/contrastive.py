"""Contrastive losses: one softmax over the own key and the bank, with a set of positives.

| method  | positives                                                  | loss of a sample                    |
|---------|------------------------------------------------------------|-------------------------------------|
| InfoNCE | the own key                                                | -log p(own key)                     |
| UberNCE | the own key and entries with the same label                | mean over positives of -log p       |
| SupCon  | as UberNCE, with or without the own key                    | mean over positives of -log p       |
| CoCLR   | the own key, siblings, and the top k of the guide's column | -log of the sum of p over positives |
"""

from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from covid_cmsf.methods.base import (
    EmbeddedBatch,
    HeadConfig,
    Method,
    Metrics,
    PerSampleLoss,
    TargetMethodConfig,
    mask_invalid,
    unconstrained_purity,
)
from covid_cmsf.methods.diagnostics import overlap, purity
from covid_cmsf.methods.memory_bank import MemoryBank, MemoryBanks
from covid_cmsf.methods.neighbors import nearest

# B batch, M bank entries, D embedding

ExcludeNegatives = Literal["none", "video", "source"]
Temperature = Annotated[float, Field(gt=0)]


def contrastive_logits(online: Tensor, keys: Tensor, bank: Tensor, *, temperature: float) -> Tensor:
    """Return logits (B, 1 + M): similarity to the own key, then to every bank entry, over the temperature.

    All embeddings are unit vectors.
    """
    own = (online * keys.detach()).sum(1, keepdim=True)
    return torch.cat([own, online @ bank.T], dim=1).float() / temperature


def own_key_positives(batch: int, bank_size: int, *, device: torch.device) -> Tensor:
    """Return InfoNCE's positives (B, 1 + M): the first column."""
    positives = torch.zeros(batch, 1 + bank_size, dtype=torch.bool, device=device)
    positives[:, 0] = True
    return positives


def label_positives(labels: Tensor, bank: MemoryBank, *, own_key: bool = True) -> Tensor:
    """Return positives (B, 1 + M): entries with the same label, and the own key or not. Label -1 matches nothing.

    Example:
        >>> bank, labels = cc.MemoryBank(8, rgb=2), torch.tensor([3, -1])
        >>> indices = bank.push_(rgb=torch.eye(2), videos=torch.arange(2), labels=labels)
        >>> cc.label_positives(labels, bank)
        tensor([[ True,  True, False],
                [ True, False, False]])
    """
    same = (labels[:, None] == bank.ids("labels")[None, :]) & (labels >= 0)[:, None]
    return torch.cat([same.new_full((len(same), 1), own_key), same], dim=1)


def mined_positives(
    guide: Tensor, bank: MemoryBank, *, sources: Tensor, column: str, top_k: int, mine: bool = True
) -> Tensor:
    """Return CoCLR's positives (B, 1 + M): own key, entries of the same source, the guide's `top_k` nearest others.

    With `mine=False` (the bank is not full yet) only the first two.

    Example:
        >>> bank, sources = cc.MemoryBank(8, rgb=2, flow=3), torch.arange(3)
        >>> indices = bank.push_(rgb=torch.ones(3, 2), flow=torch.eye(3), videos=sources)
        >>> cc.mined_positives(torch.eye(3)[:1], bank, sources=sources[2:], column="flow", top_k=1)
        tensor([[ True,  True, False,  True]])
    """
    sibling = sources[:, None] == bank.ids("sources")[None, :]
    positives = torch.cat([sibling.new_ones(len(sibling), 1), sibling], dim=1)
    if mine and top_k:
        indices = nearest(guide, bank.embeddings(column), top_k, forbidden=sibling).indices
        # An index of -1 (fewer than `top_k` entries) marks the own key, which is positive anyway.
        positives |= torch.zeros_like(positives).scatter_(1, indices + 1, True)
    return positives


def drop_own_key(positives: Tensor) -> Tensor:
    """Remove the own key from the positives where there are others (CoCLR's last commit): it becomes a negative."""
    others = positives[:, 1:].any(1)
    dropped = positives.clone()
    dropped[:, 0] &= ~others
    return dropped


def mask_negatives(logits: Tensor, out: Tensor) -> Tensor:
    """Set the logits (B, 1 + M) of the entries where `out` (B, M) is True to -inf: they are no negatives."""
    own = out.new_zeros(len(out), 1)
    return logits.masked_fill(torch.cat([own, out], dim=1), -torch.inf)


def mask_own_key(logits: Tensor, positives: Tensor) -> Tensor:
    """Set the own key's logit to -inf where it is no positive: then it is no negative either (Khosla et al., eq. 2)."""
    out = torch.zeros_like(positives)
    out[:, 0] = ~positives[:, 0] & positives.any(1)  # without positives the logits must stay finite
    return logits.masked_fill(out, -torch.inf)


def mean_log_loss(logits: Tensor, positives: Tensor) -> PerSampleLoss:
    """Return the mean over a sample's positives of -log p (UberNCE, SupCon). Samples without any are invalid."""
    values = -(logits.log_softmax(1).masked_fill(~positives, 0).sum(1)) / positives.sum(1).clamp(min=1)
    return mask_invalid(values, positives.any(1))


def log_sum_loss(logits: Tensor, positives: Tensor) -> PerSampleLoss:
    """Return -log of the sum of p over the positives (CoCLR, MIL-NCE). Samples without any are invalid."""
    has_positives = positives.any(1)
    # A sample without positives keeps all logits, so that its value stays finite.
    kept = logits.masked_fill(~(positives | ~has_positives[:, None]), -torch.inf)
    return mask_invalid(logits.logsumexp(1) - kept.logsumexp(1), has_positives)


class ContrastiveLoss(nn.Module):
    """One softmax over the own key and the bank, with a set of positives, for any training loop.

    Push the keys into the bank after the loss, as MoCo does; the loss never changes it. With `label_positives` it is
    UberNCE or SupCon, with `mined_positives` CoCLR; without positives, InfoNCE.

    Args:
        temperature: of the softmax.
        reduce: "log_sum" is -log of the sum of p over the positives (InfoNCE, CoCLR), "mean_log" the mean of -log p
            (UberNCE, SupCon).
        own_key_negative: an own key that is not among the positives is a negative (CoCLR's self-mask); if False, it is
            left out of the softmax (SupCon).

    Example:
        >>> bank = cc.MemoryBank(2048, rgb=128)
        >>> online, keys = (torch.nn.functional.normalize(torch.randn(4, 128)) for _ in range(2))
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> loss = cc.ContrastiveLoss(0.07)(online, keys, bank)
        >>> indices = bank.push_(rgb=keys, videos=torch.arange(4), labels=labels)
        >>> criterion = cc.ContrastiveLoss(0.1, reduce="mean_log")
        >>> loss = criterion(online, keys, bank, cc.label_positives(labels, bank))
    """

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        reduce: Literal["log_sum", "mean_log"] = "log_sum",
        own_key_negative: bool = True,
    ) -> None:
        super().__init__()
        if not temperature > 0:
            raise ValueError(f"temperature is {temperature}; it must be above 0")
        if reduce not in ("log_sum", "mean_log"):
            raise ValueError(f"reduce is {reduce!r}; choose from log_sum, mean_log")
        self.temperature, self.reduce, self.own_key_negative = temperature, reduce, own_key_negative

    def forward(self, online: Tensor, keys: Tensor, bank: MemoryBank, positives: Tensor | None = None) -> Tensor:
        """Return the mean loss of online embeddings (B, D) and their keys (B, D), all unit vectors.

        `positives` is (B, 1 + len(bank)), the own key first; only the own key when left out.
        """
        logits = contrastive_logits(online, keys, bank.targets, temperature=self.temperature)
        if positives is None:
            positives = own_key_positives(len(logits), len(bank), device=logits.device)
        loss = log_sum_loss if self.reduce == "log_sum" else mean_log_loss
        return loss(logits if self.own_key_negative else mask_own_key(logits, positives), positives).mean()


class InfoNCE(Method):
    """MoCo: the own key against the bank, which the batch enters after its loss.

    `exclude_negatives` drops entries of the same video or source from the negatives. With `batch_negatives` the batch
    enters before its loss, so its other targets are negatives too (the only ones if the bank is as small as a batch).
    """

    def __init__(
        self, *, temperature: float, exclude_negatives: ExcludeNegatives = "none", batch_negatives: bool = False
    ) -> None:
        super().__init__()
        self.temperature, self.exclude_negatives = temperature, exclude_negatives
        self.push = "before" if batch_negatives else "after"

    def logits(self, batch: EmbeddedBatch, bank: MemoryBank) -> Tensor:
        """Return logits (B, 1 + M): the own key, then the bank; excluded entries are -inf."""
        assert batch.target is not None
        logits = contrastive_logits(batch.online, batch.target, bank.targets, temperature=self.temperature)
        out = torch.zeros(len(logits), len(bank), dtype=torch.bool, device=logits.device)
        if self.exclude_negatives != "none":
            own, column = (batch.videos, "videos") if self.exclude_negatives == "video" else (batch.sources, "sources")
            out = own[:, None] == bank.ids(column)[None, :]
        if batch.bank_indices is not None:  # the own key is in the bank already
            out = out | (torch.arange(len(bank), device=out.device)[None, :] == batch.bank_indices.main[:, None])
        return mask_negatives(logits, out)

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return -log p(own key)."""
        assert banks is not None
        logits = self.logits(batch, banks.main)
        return log_sum_loss(logits, own_key_positives(len(logits), logits.shape[1] - 1, device=logits.device))

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return how often the own key is the nearest of all, and the purity of the nearest entries."""
        assert banks is not None
        best = self.logits(batch, banks.main).argmax(1)
        return {"own_key_first": float((best == 0).float().mean()), **unconstrained_purity(batch, banks)}


class SupervisedContrastive(InfoNCE):
    """UberNCE and SupCon: entries with the same label are positives; the own key only with `include_target`.

    An own key that is no positive is left out of the denominator, or a negative with `own_key_negative`.
    """

    uses_labels = True

    def __init__(self, *, temperature: float, include_target: bool = True, own_key_negative: bool = False) -> None:
        super().__init__(temperature=temperature)
        self.include_target, self.own_key_negative = include_target, own_key_negative

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return the mean over the positives of -log p."""
        assert banks is not None
        logits = self.logits(batch, banks.main)
        positives = label_positives(batch.labels, banks.main, own_key=self.include_target)
        return mean_log_loss(logits if self.own_key_negative else mask_own_key(logits, positives), positives)


class CoCLR(InfoNCE):
    """Positives: the own key, siblings, and the guide's top k (Han et al. 2020).

    With probability `drop_self` a step treats the own key as a negative where there are other positives, as the last
    commit of their code does.
    """

    uses_guides = True

    def __init__(self, *, temperature: float, top_k: int, drop_self: float = 0.0) -> None:
        super().__init__(temperature=temperature)
        self.top_k, self.drop_self = top_k, drop_self

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """Return -log of the sum of p over the positives. Mining begins when the bank is full."""
        assert banks is not None and batch.guides
        bank = banks.main
        ((column, guide),) = batch.guides.items()
        full = len(bank) == bank.size
        positives = mined_positives(guide, bank, sources=batch.sources, column=column, top_k=self.top_k, mine=full)
        if self.drop_self and float(torch.rand((), generator=generator)) < self.drop_self:
            positives = drop_own_key(positives)
        return log_sum_loss(self.logits(batch, bank), positives)

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """Return InfoNCE's metrics, the purity of the mined entries, and how far target and guide agree."""
        assert banks is not None and batch.guides and batch.target is not None and batch.bank_indices is not None
        bank = banks.main
        ((column, guide),) = batch.guides.items()
        sibling = batch.sources[:, None] == bank.ids("sources")[None, :]
        mined = nearest(guide, bank.embeddings(column), self.top_k, forbidden=sibling)
        nearest_targets = nearest(batch.target, bank.targets, self.top_k, forbidden=sibling)
        fraction = purity(mined, batch.true_labels, bank.ids("true_labels"), own_indices=batch.bank_indices.main)
        metrics = {"agreement": overlap(nearest_targets, mined)} | ({} if fraction is None else {"purity": fraction})
        return {**super().compute_metrics(batch, banks), **metrics}


class ContrastiveConfig(TargetMethodConfig):
    """What all contrastive methods share: the values of MoCo and CoCLR."""

    head: HeadConfig = HeadConfig(projector="coclr")
    bank_size: int = Field(default=2048, ge=1, description="entries of the memory bank")
    ema_momentum: float = Field(default=0.999, ge=0, lt=1, description="of the target network")
    temperature: Temperature = Field(default=0.07, description="of the softmax")


class InfoNceConfig(ContrastiveConfig):
    """MoCo (He et al. 2020)."""

    name: Literal["infonce"]
    title: ClassVar[str] = "InfoNCE"
    exclude_negatives: ExcludeNegatives = Field(
        default="none", description="entries of the same video or source are no negatives"
    )
    batch_negatives: bool = Field(default=False, description="the batch's other targets are negatives too")

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return InfoNCE(
            temperature=self.temperature, exclude_negatives=self.exclude_negatives, batch_negatives=self.batch_negatives
        )


class UberNceConfig(ContrastiveConfig):
    """Entries with the same label are positives: the supervised bound of Han et al."""

    name: Literal["ubernce"]
    title: ClassVar[str] = "UberNCE"

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return SupervisedContrastive(temperature=self.temperature)


class SupConConfig(ContrastiveConfig):
    """SupCon (Khosla et al. 2020) with a memory bank, as in the paper's tables."""

    name: Literal["supcon"]
    title: ClassVar[str] = "SupCon"
    head: HeadConfig = HeadConfig(projector="supcon")
    temperature: Temperature = Field(default=0.1, description="of the softmax")
    include_target: bool = Field(default=True, description="the own key is a positive too")
    own_key_negative: bool = Field(
        default=False, description="an own key that is no positive is a negative; false: it is left out of the loss"
    )

    @model_validator(mode="after")
    def _only_without_the_target(self) -> "SupConConfig":
        if self.own_key_negative and self.include_target:
            raise ValueError("own_key_negative has no effect with include_target: true; set include_target: false")
        return self

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return SupervisedContrastive(
            temperature=self.temperature, include_target=self.include_target, own_key_negative=self.own_key_negative
        )


class CoClrConfig(ContrastiveConfig):
    """CoCLR (Han et al. 2020)."""

    name: Literal["coclr"]
    bank_warmup: Annotated[int, Field(ge=0)] | Literal["full"] = Field(
        default="full", description="train no step before the bank holds so many entries, or is full"
    )
    top_k: int = Field(default=5, ge=0, description="entries that the guide adds to the positives of a full bank")
    drop_self: float = Field(default=0.0, ge=0, le=1, description="probability of CoCLR's later self-mask (0.9 there)")

    @property
    def display_name(self) -> str:
        return f"CoCLR k={self.top_k}"

    @property
    def max_guides(self) -> int | None:
        return 1

    def build(self, *, num_classes: int, embedding_dim: int) -> Method:
        return CoCLR(temperature=self.temperature, top_k=self.top_k, drop_self=self.drop_self)
