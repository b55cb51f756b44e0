"""Groups of similar videos, with representatives and outliers."""

# N videos, D vector, C clusters

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.methods.instance_memory import kmeans
from covid_cmsf.search.index import SearchIndex, modality_weights

ITERATIONS = 50
RESTARTS = 8
MAX_CLUSTERS = 60
SAMPLE, SAMPLE_RESTARTS = 2000, 3  # videos that choose the number of clusters; someone waits for it
OUTLIER_NEIGHBORS = 5


@dataclass(frozen=True)
class Cluster:
    """Videos of one group, most typical first."""

    videos: tuple[int, ...]
    cohesion: float  # mean cosine similarity to the center


@dataclass(frozen=True)
class Clustering:
    """Clusters, largest first. `outliers` are all videos, the least similar to their nearest neighbors first."""

    clusters: tuple[Cluster, ...]
    outliers: tuple[tuple[int, float], ...]  # video, mean similarity to its nearest neighbors
    separation: float  # -1 to 1: how much nearer videos are to their own center than to the next


def cluster_videos(
    index: SearchIndex, *, modality: str = "fused", num_clusters: int | None = None, seed: int = 0
) -> Clustering:
    """Divide the videos of an index by k-means; without `num_clusters` the best separated number is taken.

    Videos without windows of a requested modality are left out.
    """
    vectors, videos = mean_vectors(index, modality)
    if len(videos) < 2:
        raise ValueError(f"{len(videos)} videos have windows of {modality}; clusters need at least 2")
    if num_clusters is not None and not 1 <= num_clusters <= len(videos):
        raise ValueError(f"{num_clusters} clusters of {len(videos)} videos: choose from 1 to {len(videos)}")
    if num_clusters is None:
        num_clusters = choose_num_clusters(vectors, seed=seed)
    labels = _assign(vectors, num_clusters, seed)
    centers = _centers(vectors, labels)
    similarity = vectors @ centers.T  # (N, C)
    clusters = []
    for cluster in range(len(centers)):
        members = (labels == cluster).nonzero().flatten()
        own = similarity[members, cluster]
        order = torch.argsort(own, descending=True, stable=True)
        clusters.append(Cluster(tuple(int(videos[i]) for i in members[order]), float(own.mean())))
    return Clustering(
        clusters=tuple(sorted(clusters, key=lambda one: (-len(one.videos), one.videos))),
        outliers=_outliers(vectors, videos),
        separation=separation(similarity, labels),
    )


def mean_vectors(index: SearchIndex, modality: str = "fused") -> tuple[Tensor, Tensor]:
    """Return unit vectors (N, D), the mean of each video's windows, and the videos (N,) that have them.

    For `fused` the vectors of all modalities are concatenated, so that a dot product is the mean of theirs.
    """
    weights = modality_weights(index, modality)
    parts, present = [], torch.ones(len(index.videos), dtype=torch.bool)
    for name, weight in weights.items():
        windows = index.windows[name]
        counts = torch.bincount(windows.videos, minlength=len(index.videos))
        sums = torch.zeros(len(index.videos), windows.vectors.shape[1], dtype=torch.float64)
        sums.index_add_(0, windows.videos, windows.vectors.double())
        parts.append(F.normalize(sums, dim=1) * weight**0.5)
        present &= counts > 0
    return F.normalize(torch.cat(parts, 1), dim=1).float()[present], present.nonzero().flatten()


def choose_num_clusters(vectors: Tensor, *, seed: int = 0) -> int:
    """Return the number of clusters, 2 to MAX_CLUSTERS, whose videos are best separated."""
    sample = vectors[torch.linspace(0, len(vectors) - 1, min(len(vectors), SAMPLE)).long()]
    highest = max(2, min(MAX_CLUSTERS, len(sample) // 3))
    numbers: list[int] = sorted({round(2 * (highest / 2) ** (step / 11)) for step in range(12)})
    scores = []
    for number in numbers:
        labels = _assign(sample, number, seed, restarts=SAMPLE_RESTARTS)
        scores.append(separation(sample @ _centers(sample, labels).T, labels))
    return numbers[scores.index(max(scores))]


def separation(similarity: Tensor, labels: Tensor) -> float:
    """Return the mean silhouette with respect to centers (N, C): (b - a) / max(a, b), of distances 1 - similarity."""
    if similarity.shape[1] < 2:
        return 0.0
    distance = 1 - similarity
    own = distance.gather(1, labels[:, None])[:, 0]
    other = distance.scatter(1, labels[:, None], torch.inf).amin(1)
    return float(((other - own) / torch.maximum(own, other).clamp_min(1e-9)).mean())


def _assign(vectors: Tensor, num_clusters: int, seed: int, *, restarts: int = RESTARTS) -> Tensor:
    """Return (N,) labels 0 to C - 1 without gaps, the best of `restarts`; C is smaller than asked for if any is empty.

    k-means with Euclidean distances; on unit vectors it is the spherical one, up to the lengths of the centers.
    """
    generator = torch.Generator().manual_seed(seed)
    best, best_similarity = torch.zeros(len(vectors), dtype=torch.int64), -torch.inf
    for _ in range(restarts):
        found = kmeans(vectors, num_clusters, iterations=ITERATIONS, generator=generator)
        labels = torch.unique(found, return_inverse=True)[1]
        similarity = float((vectors * _centers(vectors, labels)[labels]).sum())
        if similarity > best_similarity:
            best, best_similarity = labels, similarity
    return best


def _centers(vectors: Tensor, labels: Tensor) -> Tensor:
    sums = torch.zeros(int(labels.max()) + 1, vectors.shape[1]).index_add_(0, labels, vectors)
    return F.normalize(sums, dim=1)


def _outliers(vectors: Tensor, videos: Tensor) -> tuple[tuple[int, float], ...]:
    k = min(OUTLIER_NEIGHBORS, len(vectors) - 1)
    means = []
    for block in torch.arange(len(vectors)).split(1024):
        similarity = vectors[block] @ vectors.T
        similarity[torch.arange(len(block)), block] = -torch.inf
        means.append(similarity.topk(k, dim=1).values.mean(1))
    scores = torch.cat(means)
    order = torch.argsort(scores, stable=True)
    return tuple((int(videos[i]), float(scores[i])) for i in order)
