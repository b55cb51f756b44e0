"""Instance memory: every video's last target embedding, and its cluster by k-means.

CMSF-2Q and CMSF-KM (Navaneet et al. 2022) take their constraint from it instead of from labels or guides.
"""

import torch
from torch import Tensor, nn

from covid_cmsf.methods.neighbors import slices

# B batch, N videos or points, C clusters, D embedding

PREVIOUS_COLUMN = "previous"  # of the memory bank: the same videos as they were embedded in the epoch before


class InstanceMemory(nn.Module):
    """`embeddings` (N, D) as they were when each video was last seen; `clusters` (N,), 0 until there are some."""

    embeddings: Tensor
    seen: Tensor
    clusters: Tensor

    def __init__(self, num_videos: int, dim: int) -> None:
        super().__init__()
        self.register_buffer("embeddings", torch.zeros(num_videos, dim))
        self.register_buffer("seen", torch.zeros(num_videos, dtype=torch.bool))
        self.register_buffer("clusters", torch.zeros(num_videos, dtype=torch.int64))

    def lookup(self, videos: Tensor, targets: Tensor) -> Tensor:
        """Return the embeddings (B, D) of these videos in the epoch before, or the targets in the first epoch."""
        return torch.where(self.seen[videos].unsqueeze(1), self.embeddings[videos], targets.float())

    @torch.no_grad()
    def update_(self, videos: Tensor, targets: Tensor) -> None:
        """Store the unit vectors (B, D) of these videos."""
        self.embeddings[videos] = targets.float()
        self.seen[videos] = True

    @torch.no_grad()
    def cluster_(self, num_clusters: int, *, iterations: int, generator: torch.Generator) -> None:
        """Cluster the videos seen so far; those not seen yet get -1 (an epoch drops its last partial batch)."""
        points = self.embeddings[self.seen]
        found = kmeans(points, min(num_clusters, len(points)), iterations=iterations, generator=generator)
        self.clusters.fill_(-1)
        self.clusters[self.seen] = found


@torch.no_grad()
def kmeans(points: Tensor, num_clusters: int, *, iterations: int, generator: torch.Generator) -> Tensor:
    """Return the cluster (N,) of each point (N, D), by Lloyd's iterations from randomly drawn points.

    An empty cluster restarts at the point that is farthest from its center.
    """
    if not 1 <= num_clusters <= len(points):
        raise ValueError(f"{num_clusters} clusters of {len(points)} embeddings: at least 1, at most one for each")
    points = points.float()
    drawn = torch.randperm(len(points), generator=generator)[:num_clusters]
    centers = points[drawn.to(points.device)]
    clusters, distances = assign_to_centers(points, centers)
    for _ in range(iterations):
        centers = _update_centers(points, clusters, distances, num_clusters)
        before, (clusters, distances) = clusters, assign_to_centers(points, centers)
        if torch.equal(before, clusters):
            break
    return clusters


def assign_to_centers(points: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """Return the nearest center (N,) of each point, the first of equal ones, and its squared distance (N,)."""
    squares = centers.square().sum(1)
    found, distances = [], []
    for chunk in slices(len(points), 4 * len(centers)):
        best = (squares - 2 * points[chunk] @ centers.T).min(1)
        found.append(best.indices)
        distances.append(best.values + points[chunk].square().sum(1))
    return torch.cat(found), torch.cat(distances)


def _update_centers(points: Tensor, clusters: Tensor, distances: Tensor, num_clusters: int) -> Tensor:
    sums = torch.zeros(num_clusters, points.shape[1], device=points.device).index_add_(0, clusters, points)
    counts = torch.bincount(clusters, minlength=num_clusters)
    centers = sums / counts.clamp(min=1).unsqueeze(1)
    empty = (counts == 0).nonzero().flatten()
    if len(empty):
        centers[empty] = points[distances.topk(len(empty)).indices]
    return centers
