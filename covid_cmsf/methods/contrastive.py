"""Contrastive methods: the logits are MoCo's, the positives make the difference (table in `contrast`)."""

# B batch, M bank rows

from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.methods.bank import Bank
from covid_cmsf.methods.banks import Banks
from covid_cmsf.methods.contrast import (
    contrast_logits,
    drop_own_key,
    label_positives,
    log_sum_loss,
    mean_log_loss,
    mined_positives,
    own_key_only,
    without_rows,
)
from covid_cmsf.methods.diagnostics import overlap, purity
from covid_cmsf.methods.example_losses import ExampleLosses
from covid_cmsf.methods.method import Embedded, Facts, Method, free_purity
from covid_cmsf.methods.neighbors import nearest

LeaveOut = Literal["none", "video", "source"]


class InfoNCE(Method):
    """MoCo: the own key against the bank, which the batch enters after its loss.

    `leave_out` drops rows of the same video or source from the negatives. With `batch_negatives` the batch enters
    first, so that its other targets are negatives too: the whole of them when the bank is as small as a batch.
    """

    def __init__(self, *, temperature: float, leave_out: LeaveOut = "none", batch_negatives: bool = False) -> None:
        super().__init__()
        self.temperature, self.leave_out = temperature, leave_out
        self.push = "before" if batch_negatives else "after"

    def logits(self, batch: Embedded, bank: Bank) -> Tensor:
        """(B, 1 + M): the own key, then the rows; rows that are left out are -inf."""
        assert batch.target is not None
        logits = contrast_logits(batch.online, batch.target, bank.rows("target"), temperature=self.temperature)
        out = torch.zeros(len(logits), len(bank), dtype=torch.bool, device=logits.device)
        if self.leave_out != "none":
            mine, theirs = (batch.videos, "videos") if self.leave_out == "video" else (batch.sources, "sources")
            out = mine[:, None] == bank.who(theirs)[None, :]
        if batch.rows is not None:  # the batch is in the bank: its own key stands in the first column already
            out = out | (torch.arange(len(bank), device=out.device)[None, :] == batch.rows.everyone[:, None])
        return without_rows(logits, out)

    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """-log p(own key)."""
        assert banks is not None
        logits = self.logits(batch, banks.everyone)
        return log_sum_loss(logits, own_key_only(len(logits), logits.shape[1] - 1, device=logits.device))

    @torch.no_grad()
    def watch(self, batch: Embedded, banks: Banks | None) -> Facts:
        """How often the own key is the nearest of all, and how pure the nearest rows are."""
        assert banks is not None
        best = self.logits(batch, banks.everyone).argmax(1)
        return {"own_key_first": float((best == 0).float().mean()), **free_purity(batch, banks)}


class LabelContrast(InfoNCE):
    """UberNCE and SupCon: rows with the same label are positives too; the own key may be left out of them."""

    uses_labels = True

    def __init__(self, *, temperature: float, include_target: bool = True) -> None:
        super().__init__(temperature=temperature)
        self.include_target = include_target

    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """The mean over the positives of -log p."""
        assert banks is not None
        bank = banks.everyone
        return mean_log_loss(self.logits(batch, bank), label_positives(batch.labels, bank, own_key=self.include_target))


class CoCLR(InfoNCE):
    """Positives: the own key, siblings, and the guide's top k. `drop_self` is the self-mask of its last commit.

    With that probability a step treats the own key as a negative where there are other positives.
    """

    uses_guides = True

    def __init__(self, *, temperature: float, top_k: int, drop_self: float = 0.0) -> None:
        super().__init__(temperature=temperature)
        self.top_k, self.drop_self = top_k, drop_self

    def losses(self, batch: Embedded, banks: Banks | None, generator: torch.Generator) -> ExampleLosses:
        """-log of the positives' share of the softmax. Mining begins when the bank is full."""
        assert banks is not None and batch.guides
        bank = banks.everyone
        ((column, guide),) = batch.guides.items()
        full = len(bank) == bank.num_rows
        positives = mined_positives(guide, bank, sources=batch.sources, column=column, top_k=self.top_k, mine=full)
        if self.drop_self and float(torch.rand((), generator=generator)) < self.drop_self:
            positives = drop_own_key(positives)
        return log_sum_loss(self.logits(batch, bank), positives)

    @torch.no_grad()
    def watch(self, batch: Embedded, banks: Banks | None) -> Facts:
        """As InfoNCE; and how pure the mined rows are, and how far the target agrees with the guide."""
        assert banks is not None and batch.guides and batch.target is not None and batch.rows is not None
        bank = banks.everyone
        ((column, guide),) = batch.guides.items()
        sibling = batch.sources[:, None] == bank.who("sources")[None, :]
        mined = nearest(guide, bank.rows(column), self.top_k, forbidden=sibling)
        near = nearest(batch.target, bank.rows("target"), self.top_k, forbidden=sibling)
        share = purity(mined, batch.true_labels, bank.who("true_labels"), own_rows=batch.rows.everyone)
        facts = {"agreement": overlap(near, mined)} | ({} if share is None else {"purity": share})
        return {**super().watch(batch, banks), **facts}
