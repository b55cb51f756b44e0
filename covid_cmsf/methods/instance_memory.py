"""The memory of a run: of every video its last target embedding, and the cluster that it is in.

CMSF-2Q and CMSF-KM (Navaneet et al. 2022) take their constraint from it instead of from a label or a guide.
"""

import torch
from torch import Tensor, nn

from covid_cmsf.methods.neighbors import slices

# B batch, N videos, D embedding


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
        """(B, D): the embeddings of these videos' last visits; at the first visit the targets themselves."""
        return torch.where(self.seen[videos].unsqueeze(1), self.embeddings[videos], targets.float())

    @torch.no_grad()
    def update_(self, videos: Tensor, targets: Tensor) -> None:
        """Unit vectors (B, D) take the place of what was known of these videos."""
        self.embeddings[videos] = targets.float()
        self.seen[videos] = True

    @torch.no_grad()
    def cluster_(self, num_clusters: int, *, iterations: int, generator: torch.Generator) -> None:
        """Clusters of all that was seen; the few videos that never were get -1 (an epoch may leave some out)."""
        points = self.embeddings[self.seen]
        found = kmeans(points, min(num_clusters, len(points)), iterations=iterations, generator=generator)
        self.clusters.fill_(-1)
        self.clusters[self.seen] = found


# k-means: clusters of embeddings, as the constraint of CMSF-KM.

# N points, C clusters, D embedding


@torch.no_grad()
def kmeans(points: Tensor, num_clusters: int, *, iterations: int, generator: torch.Generator) -> Tensor:
    """(N,) the cluster of each point (N, D), by Lloyd's iterations from `num_clusters` points drawn by the generator.

    A cluster that has lost all points begins anew at the point that is farthest from its center.
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
    """(N,) the nearest center of each point, of equal ones the first; and (N,) its squared distance."""
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
