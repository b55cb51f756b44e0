"""Features in two dimensions: principal components always, UMAP where it is installed."""

# N rows, D feature

from importlib import import_module
from importlib.util import find_spec

import torch
from torch import Tensor

NEIGHBORS, DISTANCE = 15, 0.1  # of UMAP, its own defaults


def principal_components(rows: Tensor) -> tuple[Tensor, tuple[float, float]]:
    """(N, D) -> (N, 2) on the two directions of largest variance, and their shares of the variance.

    Each direction's sign is such that its largest component is positive, so that the same features give the same map.
    """
    centered = rows.double() - rows.double().mean(0)
    values, vectors = torch.linalg.eigh(centered.T @ centered)  # ascending
    directions = vectors[:, -2:].flip(1)  # (D, 2)
    largest = directions.gather(0, directions.abs().argmax(0, keepdim=True))
    directions = directions * largest.sign()
    total = float(values.clamp_min(0).sum()) or 1.0
    shares = (float(values[-1]) / total, float(values[-2]) / total if len(values) > 1 else 0.0)
    places = centered @ directions
    if places.shape[1] < 2:
        places = torch.cat([places, torch.zeros_like(places)], dim=1)
    return places.float(), shares


def has_umap() -> bool:
    """Whether umap-learn is installed."""
    return find_spec("umap") is not None


def umap_places(rows: Tensor, *, seed: int = 0) -> Tensor:
    """(N, D) -> (N, 2) by UMAP with the cosine distance. The same seed gives the same map."""
    reducer = import_module("umap").UMAP(
        n_neighbors=min(NEIGHBORS, len(rows) - 1), min_dist=DISTANCE, metric="cosine", random_state=seed, n_jobs=1
    )
    return torch.from_numpy(reducer.fit_transform(rows.numpy())).float()
