"""Contrastive losses: one softmax over the own key and the bank, with a set of positives.

| method  | positives                                                  | loss of an example                  |
|---------|------------------------------------------------------------|-------------------------------------|
| InfoNCE | the own key                                                | -log p(own key)                     |
| UberNCE | the own key and rows with the same label                   | mean over positives of -log p       |
| SupCon  | as UberNCE, with or without the own key                    | mean over positives of -log p       |
| CoCLR   | the own key, siblings, and the top k of the guide's column | -log of the sum of p over positives |
"""

# B batch, M bank rows, D embedding

import torch
from torch import Tensor

from covid_cmsf.methods.bank import Bank
from covid_cmsf.methods.example_losses import ExampleLosses, counted_only
from covid_cmsf.methods.neighbors import nearest


def contrast_logits(online: Tensor, keys: Tensor, bank: Tensor, *, temperature: float) -> Tensor:
    """(B, 1 + M): similarity to the own key, then to every row of the bank, over the temperature. All unit vectors."""
    own = (online * keys.detach()).sum(1, keepdim=True)
    return torch.cat([own, online @ bank.T], dim=1).float() / temperature


def own_key_only(batch: int, num_rows: int, *, device: torch.device) -> Tensor:
    """InfoNCE's positives (B, 1 + M): the first column."""
    positives = torch.zeros(batch, 1 + num_rows, dtype=torch.bool, device=device)
    positives[:, 0] = True
    return positives


def label_positives(labels: Tensor, bank: Bank, *, own_key: bool = True) -> Tensor:
    """(B, 1 + M): rows with the same label, and the own key (or not). Unknown labels (-1) match nothing."""
    same = (labels[:, None] == bank.who("labels")[None, :]) & (labels >= 0)[:, None]
    return torch.cat([same.new_full((len(same), 1), own_key), same], dim=1)


def mined_positives(guide: Tensor, bank: Bank, *, sources: Tensor, column: str, top_k: int, mine: bool) -> Tensor:
    """CoCLR's positives (B, 1 + M): the own key, rows of the same source, and the guide's `top_k` other rows.

    With `mine=False` (the bank is not full yet) only the first two.
    """
    sibling = sources[:, None] == bank.who("sources")[None, :]
    positives = torch.cat([sibling.new_ones(len(sibling), 1), sibling], dim=1)
    if mine and top_k:
        rows = nearest(guide, bank.rows(column), top_k, forbidden=sibling).rows
        marked = torch.zeros_like(positives).scatter_(1, rows + 1, True)  # -1 (none) falls on the own key
        positives |= marked
    return positives


def drop_own_key(positives: Tensor) -> Tensor:
    """CoCLR's last commit: the own key is no positive where there are others. It stays in the softmax: a negative."""
    others = positives[:, 1:].any(1)
    changed = positives.clone()
    changed[:, 0] &= ~others
    return changed


def without_rows(logits: Tensor, out: Tensor) -> Tensor:
    """Logits (B, 1 + M) without the rows where `out` (B, M) is True: they are no negatives."""
    own = out.new_zeros(len(out), 1)
    return logits.masked_fill(torch.cat([own, out], dim=1), -torch.inf)


def mean_log_loss(logits: Tensor, positives: Tensor) -> ExampleLosses:
    """UberNCE and SupCon: the mean over an example's positives of -log p; examples without any do not count."""
    values = -(logits.log_softmax(1).masked_fill(~positives, 0).sum(1)) / positives.sum(1).clamp(min=1)
    return counted_only(values, positives.any(1))


def log_sum_loss(logits: Tensor, positives: Tensor) -> ExampleLosses:
    """CoCLR (as MIL-NCE): -log of the positives' share of the softmax; examples without any do not count."""
    some = positives.any(1)
    kept = logits.masked_fill(~(positives | ~some[:, None]), -torch.inf)  # a row without positives stays finite
    return counted_only(logits.logsumexp(1) - kept.logsumexp(1), some)
