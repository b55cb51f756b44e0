"""k-means: clusters of embeddings, as the constraint of CMSF-KM."""

# N rows, C clusters, D embedding

import torch
from torch import Tensor

from covid_cmsf.methods.neighbors import slices


@torch.no_grad()
def kmeans(rows: Tensor, num_clusters: int, *, iterations: int, generator: torch.Generator) -> Tensor:
    """(N,) the cluster of each row (N, D), by Lloyd's iterations from `num_clusters` rows drawn by the generator.

    A cluster that has lost all rows begins anew at the row that is farthest from its center.
    """
    if not 1 <= num_clusters <= len(rows):
        raise ValueError(f"{num_clusters} clusters of {len(rows)} embeddings: at least 1, at most one for each")
    rows = rows.float()
    drawn = torch.randperm(len(rows), generator=generator)[:num_clusters]
    centers = rows[drawn.to(rows.device)]
    clusters, distances = assign(rows, centers)
    for _ in range(iterations):
        centers = _means(rows, clusters, distances, num_clusters)
        before, (clusters, distances) = clusters, assign(rows, centers)
        if torch.equal(before, clusters):
            break
    return clusters


def assign(rows: Tensor, centers: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) the nearest center of each row, of equal ones the first; and (N,) its squared distance."""
    squares = centers.square().sum(1)
    found, distances = [], []
    for part in slices(len(rows), 4 * len(centers)):
        best = (squares - 2 * rows[part] @ centers.T).min(1)
        found.append(best.indices)
        distances.append(best.values + rows[part].square().sum(1))
    return torch.cat(found), torch.cat(distances)


def _means(rows: Tensor, clusters: Tensor, distances: Tensor, num_clusters: int) -> Tensor:
    sums = torch.zeros(num_clusters, rows.shape[1], device=rows.device).index_add_(0, clusters, rows)
    counts = torch.bincount(clusters, minlength=num_clusters)
    centers = sums / counts.clamp(min=1).unsqueeze(1)
    empty = (counts == 0).nonzero().flatten()
    if len(empty):
        centers[empty] = rows[distances.topk(len(empty)).indices]
    return centers
