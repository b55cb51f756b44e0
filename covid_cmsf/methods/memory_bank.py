"""The memory bank: target embeddings of past batches, with the ids of their videos.

A run has one bank for all samples and, for semi-supervised CMSF, a second one for labeled samples only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# B batch, M bank entries, D embedding

ID_NAMES = ("videos", "sources", "labels", "true_labels")


class MemoryBank(nn.Module):
    """Target embeddings of past batches in aligned columns: entry i is the same video in every column.

    A ring buffer: the newest entries replace the oldest. The first column holds the targets, further ones the
    embeddings of guides. All of it is persistent state.

    Args:
        size: number of entries.
        dims: width of each column, as a mapping.
        more_dims: width of each column, as keywords.

    Example:
        >>> bank = cc.MemoryBank(8192, rgb=256, flow=128)
        >>> rgb, flow = (torch.nn.functional.normalize(torch.randn(4, dim)) for dim in (256, 128))
        >>> bank.push_(rgb=rgb, flow=flow, videos=torch.arange(4))
        tensor([0, 1, 2, 3])
        >>> len(bank), bank.embeddings("flow").shape
        (4, torch.Size([4, 128]))
    """

    videos: Tensor
    sources: Tensor
    labels: Tensor
    true_labels: Tensor
    push_index: Tensor  # (M,) how many entries had been pushed before this one
    num_pushed: Tensor

    def __init__(self, size: int, dims: Mapping[str, int] | None = None, **more_dims: int) -> None:
        super().__init__()
        dims = {**(dims or {}), **more_dims}
        if size < 1 or not dims:
            raise ValueError(f"a bank needs at least 1 entry and 1 column, not {size} and {dims}")
        self.size, self.columns = size, tuple(dims)
        for name, dim in dims.items():
            self.register_buffer(f"column_{name}", torch.zeros(size, dim))
        for name in (*ID_NAMES, "push_index"):
            self.register_buffer(name, torch.full((size,), -1, dtype=torch.int64))
        self.register_buffer("num_pushed", torch.zeros((), dtype=torch.int64))
        self._count = 0  # `num_pushed` as a number: reading that from a GPU would wait for it

    def __len__(self) -> int:
        """Return the number of filled entries; only these can be neighbors."""
        return min(self._count, self.size)

    def _load_from_state_dict(self, *args: Any, **options: Any) -> None:
        super()._load_from_state_dict(*args, **options)
        self._count = int(self.num_pushed)

    @property
    def targets(self) -> Tensor:
        """(len, D): the filled entries of the first column. A view: do not change it."""
        return self.embeddings(self.columns[0])

    def embeddings(self, column: str) -> Tensor:
        """Return the filled entries (len, D) of a column. A view: do not change it."""
        return self.get_buffer(f"column_{column}")[: len(self)]

    def ids(self, name: str) -> Tensor:
        """Return `videos`, `sources`, `labels` or `true_labels` (len,) of the filled entries; -1 is unknown."""
        assert name in ID_NAMES
        return self.get_buffer(name)[: len(self)]

    @torch.no_grad()
    def push_(
        self,
        embeddings: Mapping[str, Tensor] | None = None,
        *,
        videos: Tensor,
        sources: Tensor | None = None,
        labels: Tensor | None = None,
        true_labels: Tensor | None = None,
        **more_embeddings: Tensor,
    ) -> Tensor:
        """Write a batch of unit vectors (B, D), one tensor per column, and return the indices of its entries (B,).

        Without `sources` every video is its own source; without `labels` they are unknown (-1). Of a batch larger
        than the bank only the last entries stay; the others' indices are -1.
        """
        embeddings = {**(embeddings or {}), **more_embeddings}
        if set(embeddings) != set(self.columns):
            raise ValueError(f"this bank has the columns {', '.join(self.columns)}; got {', '.join(embeddings)}")
        sources = videos if sources is None else sources
        labels = torch.full_like(videos, -1) if labels is None else labels
        true_labels = labels if true_labels is None else true_labels
        num_new = len(videos)
        positions = torch.arange(self._count, self._count + num_new, device=videos.device)
        kept = slice(max(0, num_new - self.size), None)
        indices = (positions % self.size)[kept]
        for name, values in embeddings.items():
            self.get_buffer(f"column_{name}")[indices] = values[kept].detach().float()
        ids = (videos, sources, labels, true_labels, positions)
        for name, numbers in zip((*ID_NAMES, "push_index"), ids, strict=True):
            self.get_buffer(name)[indices] = numbers[kept]
        self.num_pushed += num_new
        self._count += num_new
        return torch.where(positions < self._count - self.size, -1, positions % self.size)

    @torch.no_grad()
    def relabel_(self, labels: Tensor) -> None:
        """Replace the entries' labels by those that their videos have now; `labels` is (number of videos,)."""
        self.labels[: len(self)] = labels[self.ids("videos")]

    def mean_age(self) -> float:
        """Return how many pushes ago the average entry was written, as a fraction of the bank: about 0.5 when full."""
        if not len(self):
            return 0.0
        return float((self._count - self.push_index[: len(self)]).float().mean() / self.size)


@dataclass(frozen=True)
class BankIndices:
    """Indices (B,) of a batch's targets in the banks; -1 where a sample is not in that bank."""

    main: Tensor
    labeled: Tensor | None = None

    def select(self, chosen: Tensor | slice) -> "BankIndices":
        """Return those of some samples: `chosen` are rows, a mask (B,) or a slice."""
        return BankIndices(self.main[chosen], None if self.labeled is None else self.labeled[chosen])


class MemoryBanks(nn.Module):
    """The banks of a run: `main` holds all samples; `labeled` (or None) those whose label is known."""

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
        """Write a batch into the banks it belongs to; the arguments are those of `MemoryBank.push_`."""
        true_labels = labels if true_labels is None else true_labels
        ids = {"videos": videos, "sources": sources, "labels": labels, "true_labels": true_labels}
        indices = self.main.push_(embeddings, **ids)
        if self.labeled is None:
            return BankIndices(indices)
        # Rows instead of a mask: every index by a mask would wait for a GPU.
        labeled_rows, labeled_indices = (labels >= 0).nonzero().flatten(), torch.full_like(indices, -1)
        if len(labeled_rows):
            labeled_embeddings = {name: values[labeled_rows] for name, values in embeddings.items()}
            labeled_indices[labeled_rows] = self.labeled.push_(
                labeled_embeddings, **{name: numbers[labeled_rows] for name, numbers in ids.items()}
            )
        return BankIndices(indices, labeled_indices)
