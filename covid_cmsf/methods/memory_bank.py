"""The memory bank: past target embeddings and who they were, in aligned columns.

Entry i means the same video in every column, whatever happens. A ring: the newest entries replace the oldest, any batch
size fits, and nothing is lost where it wraps. All of it is persistent state.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

# B batch, M bank entries, D embedding


ID_NAMES = ("videos", "sources", "labels", "true_labels")


class MemoryBank(nn.Module):
    """`dims` are the columns of embeddings and their widths, for example {"target": 128, "guide": 128}."""

    videos: Tensor
    sources: Tensor
    labels: Tensor
    true_labels: Tensor
    push_index: Tensor  # (M,) how many entries had been pushed before this one
    num_pushed: Tensor

    def __init__(self, size: int, dims: Mapping[str, int]) -> None:
        super().__init__()
        if size < 1 or not dims:
            raise ValueError(f"a bank needs at least 1 entry and 1 column, not {size} and {dict(dims)}")
        self.size, self.columns = size, tuple(dims)
        for name, dim in dims.items():
            self.register_buffer(f"column_{name}", torch.zeros(size, dim))
        for name in (*ID_NAMES, "push_index"):
            self.register_buffer(name, torch.full((size,), -1, dtype=torch.int64))
        self.register_buffer("num_pushed", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Entries that were written; only these can be neighbors."""
        return min(int(self.num_pushed), self.size)

    def embeddings(self, column: str) -> Tensor:
        """(len, D): the filled entries of a column. A view: do not change it."""
        return self.get_buffer(f"column_{column}")[: len(self)]

    def ids(self, name: str) -> Tensor:
        """(len,): `videos`, `sources`, `labels` or `true_labels` of the filled entries; -1 is unknown."""
        assert name in ID_NAMES
        return self.get_buffer(name)[: len(self)]

    @torch.no_grad()
    def push_(
        self,
        embeddings: Mapping[str, Tensor],
        *,
        videos: Tensor,
        sources: Tensor,
        labels: Tensor,
        true_labels: Tensor | None = None,
    ) -> Tensor:
        """Writes a batch and returns its entries (B,). Of a batch larger than the bank only the last entries stay: -1.

        Every column must be given; embeddings are unit vectors (B, D).
        """
        assert set(embeddings) == set(self.columns), f"columns {self.columns}, got {tuple(embeddings)}"
        num_new = len(videos)
        positions = self.num_pushed + torch.arange(num_new, device=videos.device)
        kept = slice(max(0, num_new - self.size), None)
        indices = (positions % self.size)[kept]
        for name, values in embeddings.items():
            self.get_buffer(f"column_{name}")[indices] = values[kept].detach().float()
        true_labels = labels if true_labels is None else true_labels
        for name, numbers in zip(
            (*ID_NAMES, "push_index"), (videos, sources, labels, true_labels, positions), strict=True
        ):
            self.get_buffer(name)[indices] = numbers[kept]
        self.num_pushed += num_new
        return torch.where(positions < self.num_pushed - self.size, -1, positions % self.size)

    @torch.no_grad()
    def relabel_(self, labels: Tensor) -> None:
        """Entries take the labels (number of videos,) that their videos have now."""
        self.labels[: len(self)] = labels[self.ids("videos")]

    def mean_age(self) -> float:
        """How many entries ago the average entry was written, as a fraction of the bank: about 0.5 when it is full."""
        if not len(self):
            return 0.0
        return float((self.num_pushed - self.push_index[: len(self)]).float().mean() / self.size)


# The banks of a run: one for all samples and, for semi-supervised CMSF, a second one for labeled samples only.

# B batch


@dataclass(frozen=True)
class BankIndices:
    """Where a batch's targets stand in the banks (B,); -1 where a sample is not in that bank."""

    main: Tensor
    labeled: Tensor | None = None

    def select(self, chosen: Tensor | slice) -> "BankIndices":
        """Those of some samples of the batch."""
        return BankIndices(self.main[chosen], None if self.labeled is None else self.labeled[chosen])


class MemoryBanks(nn.Module):
    """`main` holds all samples; `labeled` (None unless it has entries) those whose label is known."""

    def __init__(self, size: int, dims: Mapping[str, int], *, labeled_size: int = 0) -> None:
        super().__init__()
        self.main = MemoryBank(size, dims)
        self.labeled = MemoryBank(labeled_size, dims) if labeled_size else None

    def push_(
        self,
        embeddings: Mapping[str, Tensor],
        *,
        videos: Tensor,
        sources: Tensor,
        labels: Tensor,
        true_labels: Tensor | None = None,
    ) -> BankIndices:
        """Writes a batch into the banks it belongs to; the arguments are those of `MemoryBank.push_`."""
        true_labels = labels if true_labels is None else true_labels
        ids = {"videos": videos, "sources": sources, "labels": labels, "true_labels": true_labels}
        indices = self.main.push_(embeddings, **ids)
        if self.labeled is None:
            return BankIndices(indices)
        has_label, labeled_indices = labels >= 0, torch.full_like(indices, -1)
        if has_label.any():
            labeled_embeddings = {name: values[has_label] for name, values in embeddings.items()}
            labeled_indices[has_label] = self.labeled.push_(
                labeled_embeddings, **{name: numbers[has_label] for name, numbers in ids.items()}
            )
        return BankIndices(indices, labeled_indices)
