"""What the page reads of an index: videos, maps, clusters, and short vectors for the probe in the browser."""

# N videos, D vector, P components

import base64
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.pages.projection import has_umap, principal_components, umap_projection
from covid_cmsf.search.clusters import cluster_videos, mean_vectors
from covid_cmsf.search.duplicates import Duplicate
from covid_cmsf.search.index import SearchIndex
from covid_cmsf.search.page.neighbors import choices, leading_modality

GRID = 4095  # coordinates of the map are whole numbers from 0 to this
OUTLIERS = 60  # that the page lists
COMPONENTS = 64  # of the vectors for the probe: 64 bytes per video
LEVELS = 127  # of a component
Data = dict[str, Any]


def index_values(index: SearchIndex) -> Data:
    """Return what the page has to know first."""
    names = choices(index)
    return {
        "num_videos": len(index.videos),
        "choices": names,
        "modalities": list(index.windows),
        "spans": {name: index.windows[leading_modality(index, name)].span for name in names},
        "methods": ["pca", *(["umap"] if has_umap() and len(index.videos) > 3 else [])],
    }


def video_values(index: SearchIndex) -> Data:
    """Return the columns of the table of videos; `classes` is empty if no video has a class."""
    names = sorted({video.class_name for video in index.videos} - {""})
    number = {name: i for i, name in enumerate(names)}
    return {
        "ids": [video.video_id for video in index.videos],
        "frames": [video.num_frames for video in index.videos],
        "fps": [round(video.fps, 3) for video in index.videos],
        "class_names": names,
        "classes": [number.get(video.class_name, -1) for video in index.videos] if names else [],
    }


def map_values(index: SearchIndex, choice: str, method: str) -> Data:
    """Return the places of the videos on a map of GRID x GRID; -1 where a video has no windows."""
    vectors, videos = mean_vectors(index, choice)
    if len(videos) < 2:
        points, explained = torch.zeros(len(videos), 2), (0.0, 0.0)
    elif method == "umap":
        points, explained = umap_projection(vectors), (0.0, 0.0)
    else:
        points, explained = principal_components(vectors)
    low, high = points.amin(0), points.amax(0)
    middle, extent = (low + high) / 2, float((high - low).max().clamp_min(1e-9))  # one scale: distances stay true
    whole = ((points - middle) / extent + 0.5).mul(GRID).round().clamp(0, GRID).long()
    places = torch.full((len(index.videos), 2), -1)
    places[videos] = whole
    return {"x": places[:, 0].tolist(), "y": places[:, 1].tolist(), "explained": list(explained)}


def cluster_values(index: SearchIndex, choice: str, *, number: int | None = None) -> Data:
    """Return the clusters, largest first, with the most typical videos first, and the outliers."""
    clustering = cluster_videos(index, modality=choice, num_clusters=number)
    return {
        "clusters": [{"videos": list(one.videos), "cohesion": one.cohesion} for one in clustering.clusters],
        "outliers": [list(one) for one in clustering.outliers[:OUTLIERS]],
        "separation": clustering.separation,
    }


def duplicate_values(duplicates: Sequence[Duplicate]) -> list[Data]:
    """Return pairs with a common part, surest first."""
    return [asdict(one) for one in duplicates]


def probe_values(index: SearchIndex) -> Data:
    """Return the principal components of the videos' vectors, in bytes: the probe learns from them in the browser."""
    choice = choices(index)[0]
    vectors, videos = mean_vectors(index, choice)
    quantized, scale = quantize(components(vectors, COMPONENTS))
    rows = torch.zeros(len(index.videos), quantized.shape[1], dtype=torch.int8)
    rows[videos] = quantized
    return {
        "choice": choice,
        "size": quantized.shape[1],
        "scale": scale,
        "present": None if len(videos) == len(index.videos) else videos.tolist(),
        "bytes": base64.b64encode(rows.numpy().tobytes()).decode("ascii"),
    }


def components(vectors: Tensor, most: int) -> Tensor:
    """Return up to `most` principal components (N, P) of vectors (N, D), not whitened."""
    centered = vectors.double() - vectors.double().mean(0)
    values, directions = torch.linalg.eigh(centered.T @ centered)  # ascending
    kept: Tensor = directions[:, -min(most, len(values)) :].flip(1)
    return (centered @ kept).float()


def quantize(values: Tensor) -> tuple[Tensor, float]:
    """Return int8 values, and the number to divide them by."""
    largest = float(values.abs().max().clamp_min(1e-9)) if values.numel() else 1.0
    return (values * (LEVELS / largest)).round().to(torch.int8), LEVELS / largest
