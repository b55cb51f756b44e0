"""Mean shift (CMSF eq. 1): pull each online embedding towards its neighbours in the bank.

    loss = mean over the batch of the mean over the neighbours z of (2 - 2 v.z)

v is the online prediction, z are neighbours of the *target* u; both are unit vectors. Only v carries a gradient.
"""

# B batch, M bank rows, D embedding, K neighbours

from torch import Tensor

from covid_cmsf.methods.neighbours import Neighbours


def mean_shift_loss(online: Tensor, bank: Tensor, neighbours: Neighbours) -> Tensor:
    """The loss of online embeddings (B, D) against their neighbours among the rows of `bank` (M, D).

    Fewer than K neighbours are averaged as they are; an example without any does not count.
    """
    means, counts = neighbour_means(bank, neighbours)
    distances = 2 - 2 * (online.float() * means).sum(1)  # (B,): the mean of 2 - 2 v.z is 2 - 2 v.mean(z)
    some = (counts > 0).float()
    return (distances * some).sum() / some.sum().clamp(min=1)


def neighbour_means(bank: Tensor, neighbours: Neighbours) -> tuple[Tensor, Tensor]:
    """The mean of each example's neighbours (B, D), not normalised, and how many they are (B,)."""
    found = neighbours.found
    rows = bank[neighbours.rows.clamp(min=0)] * found.unsqueeze(2)  # (B, K, D)
    counts = found.sum(1)
    return rows.sum(1) / counts.clamp(min=1).unsqueeze(1), counts


def class_mean_loss(online: Tensor, bank: Tensor, *, labels: Tensor, bank_labels: Tensor) -> Tensor:
    """Top-all: the neighbours are all rows with the example's label, so the loss is 2 - 2 v.(their mean)."""
    ids, inverse = labels.unique(return_inverse=True)
    member = (ids[:, None] == bank_labels[None, :]) & (ids >= 0)[:, None]  # (classes, M)
    counts = member.sum(1)
    means = (member.float() @ bank) / counts.clamp(min=1).unsqueeze(1)  # (classes, D)
    distances = 2 - 2 * (online.float() * means[inverse]).sum(1)
    some = (counts[inverse] > 0).float()
    return (distances * some).sum() / some.sum().clamp(min=1)
