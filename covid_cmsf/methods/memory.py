"""The memory of a run: of every video its last target embedding, and the cluster that it is in.

CMSF-2Q and CMSF-KM (Navaneet et al. 2022) take their constraint from it instead of from a label or a guide.
"""

# B batch, N videos, D embedding

import torch
from torch import Tensor, nn

from covid_cmsf.methods.kmeans import kmeans


class Memory(nn.Module):
    """`embeddings` (N, D) as they were when each video was last seen; `clusters` (N,), 0 until there are some."""

    embeddings: Tensor
    seen: Tensor
    clusters: Tensor

    def __init__(self, num_videos: int, size: int) -> None:
        super().__init__()
        self.register_buffer("embeddings", torch.zeros(num_videos, size))
        self.register_buffer("seen", torch.zeros(num_videos, dtype=torch.bool))
        self.register_buffer("clusters", torch.zeros(num_videos, dtype=torch.int64))

    def recall(self, videos: Tensor, targets: Tensor) -> Tensor:
        """(B, D): the embeddings of these videos' last visits; at the first visit the targets themselves."""
        return torch.where(self.seen[videos].unsqueeze(1), self.embeddings[videos], targets.float())

    @torch.no_grad()
    def remember_(self, videos: Tensor, targets: Tensor) -> None:
        """Unit vectors (B, D) take the place of what was known of these videos."""
        self.embeddings[videos] = targets.float()
        self.seen[videos] = True

    @torch.no_grad()
    def cluster_(self, num_clusters: int, *, iterations: int, generator: torch.Generator) -> None:
        """Clusters of all that was seen; the few videos that never were get -1 (an epoch may leave some out)."""
        rows = self.embeddings[self.seen]
        found = kmeans(rows, min(num_clusters, len(rows)), iterations=iterations, generator=generator)
        self.clusters.fill_(-1)
        self.clusters[self.seen] = found
