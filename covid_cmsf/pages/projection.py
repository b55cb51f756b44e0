"""Maps: features in two dimensions, by principal components or UMAP."""

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

# N samples, D feature

UMAP_NEIGHBORS, UMAP_MIN_DIST = 15, 0.1  # the defaults of UMAP


def principal_components(features: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """Project (N, D) features on the two directions of largest variance; return (N, 2) and explained variances.

    Signs are such that the largest component of each direction is positive: equal features give equal maps.
    """
    centered = features.double() - features.double().mean(0)
    values, vectors = torch.linalg.eigh(centered.T @ centered)  # ascending
    directions = vectors[:, -2:].flip(1)  # (D, 2)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = directions * largest.sign()
    total = float(values.clamp_min(0).sum()) or 1.0
    explained_variance = (float(values[-1]) / total, float(values[-2]) / total if len(values) > 1 else 0.0)
    points = centered @ directions
    if points.shape[1] < 2:
        points = torch.cat([points, torch.zeros_like(points)], dim=1)
    return points.float(), explained_variance


def has_umap() -> bool:
    """Whether umap-learn is installed."""
    return find_spec("umap") is not None


def umap_projection(features: Tensor, *, seed: int = 0) -> Tensor:
    """Project (N, D) features to (N, 2) by UMAP with cosine distance, deterministic for a seed."""
    reducer = import_module("umap").UMAP(
        n_neighbors=min(UMAP_NEIGHBORS, len(features) - 1),
        min_dist=UMAP_MIN_DIST,
        metric="cosine",
        random_state=seed,
        n_jobs=1,
    )
    return torch.from_numpy(reducer.fit_transform(features.numpy())).float()
