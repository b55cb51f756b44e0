"""Contrastive losses: one softmax over the own key and the bank, with a set of positives.

| method  | positives                                                  | loss of a sample                    |
|---------|------------------------------------------------------------|-------------------------------------|
| InfoNCE | the own key                                                | -log p(own key)                     |
| UberNCE | the own key and entries with the same label                | mean over positives of -log p       |
| SupCon  | as UberNCE, with or without the own key                    | mean over positives of -log p       |
| CoCLR   | the own key, siblings, and the top k of the guide's column | -log of the sum of p over positives |
"""

from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.methods.base import EmbeddedBatch, Method, Metrics, PerSampleLoss, mask_invalid, unconstrained_purity
from covid_cmsf.methods.diagnostics import overlap, purity
from covid_cmsf.methods.memory_bank import MemoryBank, MemoryBanks
from covid_cmsf.methods.neighbors import nearest

# B batch, M bank entries, D embedding


def contrastive_logits(online: Tensor, keys: Tensor, bank: Tensor, *, temperature: float) -> Tensor:
    """(B, 1 + M): similarity to the own key, then to all of the bank, over the temperature. All unit vectors."""
    own = (online * keys.detach()).sum(1, keepdim=True)
    return torch.cat([own, online @ bank.T], dim=1).float() / temperature


def own_key_positives(batch: int, bank_size: int, *, device: torch.device) -> Tensor:
    """InfoNCE's positives (B, 1 + M): the first column."""
    positives = torch.zeros(batch, 1 + bank_size, dtype=torch.bool, device=device)
    positives[:, 0] = True
    return positives


def label_positives(labels: Tensor, bank: MemoryBank, *, own_key: bool = True) -> Tensor:
    """(B, 1 + M): entries with the same label, and the own key (or not). Unknown labels (-1) match nothing."""
    same = (labels[:, None] == bank.ids("labels")[None, :]) & (labels >= 0)[:, None]
    return torch.cat([same.new_full((len(same), 1), own_key), same], dim=1)


def mined_positives(guide: Tensor, bank: MemoryBank, *, sources: Tensor, column: str, top_k: int, mine: bool) -> Tensor:
    """CoCLR's positives (B, 1 + M): the own key, entries of the same source, and the guide's `top_k` other entries.

    With `mine=False` (the bank is not full yet) only the first two.
    """
    sibling = sources[:, None] == bank.ids("sources")[None, :]
    positives = torch.cat([sibling.new_ones(len(sibling), 1), sibling], dim=1)
    if mine and top_k:
        indices = nearest(guide, bank.embeddings(column), top_k, forbidden=sibling).indices
        mined = torch.zeros_like(positives).scatter_(1, indices + 1, True)  # -1 (none) falls on the own key
        positives |= mined
    return positives


def drop_own_key(positives: Tensor) -> Tensor:
    """CoCLR's last commit: the own key is no positive where there are others. It stays in the softmax: a negative."""
    others = positives[:, 1:].any(1)
    dropped = positives.clone()
    dropped[:, 0] &= ~others
    return dropped


def mask_negatives(logits: Tensor, out: Tensor) -> Tensor:
    """Logits (B, 1 + M) without the entries where `out` (B, M) is True: they are no negatives."""
    own = out.new_zeros(len(out), 1)
    return logits.masked_fill(torch.cat([own, out], dim=1), -torch.inf)


def mean_log_loss(logits: Tensor, positives: Tensor) -> PerSampleLoss:
    """UberNCE and SupCon: the mean over a sample's positives of -log p; samples without any do not count."""
    values = -(logits.log_softmax(1).masked_fill(~positives, 0).sum(1)) / positives.sum(1).clamp(min=1)
    return mask_invalid(values, positives.any(1))


def log_sum_loss(logits: Tensor, positives: Tensor) -> PerSampleLoss:
    """CoCLR (as MIL-NCE): -log of the positives' fraction of the softmax; samples without any do not count."""
    has_positives = positives.any(1)
    kept = logits.masked_fill(
        ~(positives | ~has_positives[:, None]), -torch.inf
    )  # an entry without positives stays finite
    return mask_invalid(logits.logsumexp(1) - kept.logsumexp(1), has_positives)


# Contrastive methods: the logits are MoCo's, the positives make the difference (see the table above).

# B batch, M bank entries


ExcludeNegatives = Literal["none", "video", "source"]


class InfoNCE(Method):
    """MoCo: the own key against the bank, which the batch enters after its loss.

    `exclude_negatives` drops entries of the same video or source from the negatives. With `batch_negatives` the batch
    enters first, so that its other targets are negatives too: the whole of them when the bank is as small as a batch.
    """

    def __init__(
        self, *, temperature: float, exclude_negatives: ExcludeNegatives = "none", batch_negatives: bool = False
    ) -> None:
        super().__init__()
        self.temperature, self.exclude_negatives = temperature, exclude_negatives
        self.push = "before" if batch_negatives else "after"

    def logits(self, batch: EmbeddedBatch, bank: MemoryBank) -> Tensor:
        """(B, 1 + M): the own key, then the entries; entries that are left out are -inf."""
        assert batch.target is not None
        logits = contrastive_logits(batch.online, batch.target, bank.embeddings("target"), temperature=self.temperature)
        out = torch.zeros(len(logits), len(bank), dtype=torch.bool, device=logits.device)
        if self.exclude_negatives != "none":
            own, column = (batch.videos, "videos") if self.exclude_negatives == "video" else (batch.sources, "sources")
            out = own[:, None] == bank.ids(column)[None, :]
        if batch.bank_indices is not None:  # the batch is in the bank: its own key stands in the first column already
            out = out | (torch.arange(len(bank), device=out.device)[None, :] == batch.bank_indices.main[:, None])
        return mask_negatives(logits, out)

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """-log p(own key)."""
        assert banks is not None
        logits = self.logits(batch, banks.main)
        return log_sum_loss(logits, own_key_positives(len(logits), logits.shape[1] - 1, device=logits.device))

    @torch.no_grad()
    def compute_metrics(self, batch: EmbeddedBatch, banks: MemoryBanks | None) -> Metrics:
        """How often the own key is the nearest of all, and how pure the nearest entries are."""
        assert banks is not None
        best = self.logits(batch, banks.main).argmax(1)
        return {"own_key_first": float((best == 0).float().mean()), **unconstrained_purity(batch, banks)}


class SupervisedContrastive(InfoNCE):
    """UberNCE and SupCon: entries with the same label are positives too; the own key may be left out of them."""

    uses_labels = True

    def __init__(self, *, temperature: float, include_target: bool = True) -> None:
        super().__init__(temperature=temperature)
        self.include_target = include_target

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """The mean over the positives of -log p."""
        assert banks is not None
        bank = banks.main
        return mean_log_loss(self.logits(batch, bank), label_positives(batch.labels, bank, own_key=self.include_target))


class CoCLR(InfoNCE):
    """Positives: the own key, siblings, and the guide's top k. `drop_self` is the self-mask of its last commit.

    With that probability a step treats the own key as a negative where there are other positives.
    """

    uses_guides = True

    def __init__(self, *, temperature: float, top_k: int, drop_self: float = 0.0) -> None:
        super().__init__(temperature=temperature)
        self.top_k, self.drop_self = top_k, drop_self

    def losses(self, batch: EmbeddedBatch, banks: MemoryBanks | None, generator: torch.Generator) -> PerSampleLoss:
        """-log of the positives' fraction of the softmax. Mining begins when the bank is full."""
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
        """As InfoNCE; and how pure the mined entries are, and how far the target agrees with the guide."""
        assert banks is not None and batch.guides and batch.target is not None and batch.bank_indices is not None
        bank = banks.main
        ((column, guide),) = batch.guides.items()
        sibling = batch.sources[:, None] == bank.ids("sources")[None, :]
        mined = nearest(guide, bank.embeddings(column), self.top_k, forbidden=sibling)
        nearest_targets = nearest(batch.target, bank.embeddings("target"), self.top_k, forbidden=sibling)
        fraction = purity(mined, batch.true_labels, bank.ids("true_labels"), own_indices=batch.bank_indices.main)
        metrics = {"agreement": overlap(nearest_targets, mined)} | ({} if fraction is None else {"purity": fraction})
        return {**super().compute_metrics(batch, banks), **metrics}
