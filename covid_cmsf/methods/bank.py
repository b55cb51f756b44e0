"""The memory bank: past target embeddings and who they were, in aligned columns.

Row i means the same video in every column, whatever happens. A ring: the newest rows replace the oldest, any batch
size fits, and nothing is lost where it wraps. All of it is persistent state.
"""

# B batch, M bank rows, D embedding

from collections.abc import Mapping

import torch
from torch import Tensor, nn

WHO = ("videos", "sources", "labels", "true_labels")


class Bank(nn.Module):
    """`sizes` are the columns of embeddings and their widths, for example {"target": 128, "guide": 128}."""

    videos: Tensor
    sources: Tensor
    labels: Tensor
    true_labels: Tensor
    born: Tensor  # (M,) how many rows had been pushed before this one
    num_pushed: Tensor

    def __init__(self, num_rows: int, sizes: Mapping[str, int]) -> None:
        super().__init__()
        if num_rows < 1 or not sizes:
            raise ValueError(f"a bank needs at least 1 row and 1 column, not {num_rows} and {dict(sizes)}")
        self.num_rows, self.columns = num_rows, tuple(sizes)
        for name, size in sizes.items():
            self.register_buffer(f"column_{name}", torch.zeros(num_rows, size))
        for name in (*WHO, "born"):
            self.register_buffer(name, torch.full((num_rows,), -1, dtype=torch.int64))
        self.register_buffer("num_pushed", torch.zeros((), dtype=torch.int64))

    def __len__(self) -> int:
        """Rows that were written; only these can be neighbors."""
        return min(int(self.num_pushed), self.num_rows)

    def rows(self, column: str) -> Tensor:
        """(len, D): the filled rows of a column. A view: do not change it."""
        return self.get_buffer(f"column_{column}")[: len(self)]

    def who(self, name: str) -> Tensor:
        """(len,): `videos`, `sources`, `labels` or `true_labels` of the filled rows; -1 is unknown."""
        assert name in WHO
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
        """Writes a batch and returns its rows (B,). Of a batch larger than the bank only the last rows stay: -1.

        Every column must be given; embeddings are unit vectors (B, D).
        """
        assert set(embeddings) == set(self.columns), f"columns {self.columns}, got {tuple(embeddings)}"
        count = len(videos)
        places = self.num_pushed + torch.arange(count, device=videos.device)
        kept = slice(max(0, count - self.num_rows), None)
        rows = (places % self.num_rows)[kept]
        for name, values in embeddings.items():
            self.get_buffer(f"column_{name}")[rows] = values[kept].detach().float()
        true_labels = labels if true_labels is None else true_labels
        for name, numbers in zip((*WHO, "born"), (videos, sources, labels, true_labels, places), strict=True):
            self.get_buffer(name)[rows] = numbers[kept]
        self.num_pushed += count
        return torch.where(places < self.num_pushed - self.num_rows, -1, places % self.num_rows)

    @torch.no_grad()
    def relabel_(self, labels: Tensor) -> None:
        """Rows take the labels (number of videos,) that their videos have now."""
        self.labels[: len(self)] = labels[self.who("videos")]

    def mean_age(self) -> float:
        """How many rows ago the average row was written, as a share of the bank: about 0.5 when it is full."""
        if not len(self):
            return 0.0
        return float((self.num_pushed - self.born[: len(self)]).float().mean() / self.num_rows)
