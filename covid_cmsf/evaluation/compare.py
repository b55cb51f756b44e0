"""Compare features files on the same queries: is one better than another, or is it chance? R@k and kNN, paired.

Every file is compared with the first. Of several files the p values are corrected for their number (Holm 1979), for
each metric by itself.
"""

# Q query videos

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION
from covid_cmsf.evaluation.fusion import match_videos
from covid_cmsf.evaluation.knn import vote
from covid_cmsf.evaluation.nearest import nearest
from covid_cmsf.evaluation.paired import PairedDifference, describe_difference, holm, paired_difference
from covid_cmsf.evaluation.retrieval import select_gallery_and_query

RANKS = (1, 5, 10)
NUM_VOTES = 20


@dataclass(frozen=True)
class Comparison:
    """One file against the first, by one metric."""

    metric: str  # R@1, R@5, ..., kNN 20
    first: str  # names of the files
    second: str
    difference: PairedDifference
    corrected_p: float  # for the number of files
    verdict: str  # of the second: better, worse, no difference shown


@dataclass(frozen=True)
class CompareResult:
    """Scores of all files in percent, and each file against the first."""

    protocol: str
    gallery: str
    query: str
    num_gallery: int
    num_query: int
    num_sources: int
    scores: dict[str, dict[str, float]]  # {file: {metric: percent}}
    comparisons: list[Comparison]
    features: list[dict[str, Any]] = field(default_factory=list)


def compare_features(
    files: Sequence[tuple[str, Features]],
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
) -> CompareResult:
    """Compare named features files, on the videos that all of them have; each is compared with the first."""
    if len(files) < 2 or len({name for name, _ in files}) != len(files):
        raise ValueError("a comparison needs at least two features files, each given once")
    names = [name for name, _ in files]
    common = _common_videos([features for _, features in files])
    chosen = [
        select_gallery_and_query(
            features,
            gallery,
            query,
            centering=centering,
            allow_shared_sources=allow_shared_sources,
            val_fraction=val_fraction,
            seed=seed,
        )
        for features in common
    ]
    num_classes = max(len(one.class_names) for one in chosen)
    hits = [_hits(one.queries, one.gallery, one.query_labels, one.gallery_labels, num_classes) for one in chosen]
    sources = chosen[0].query_sources
    comparisons = []
    for metric in hits[0]:
        found = {
            name: paired_difference(hits[0][metric], other[metric], sources, seed=seed)
            for name, other in zip(names[1:], hits[1:], strict=True)
        }
        corrected = holm({name: one.p_value for name, one in found.items()})
        comparisons += [
            Comparison(
                metric, names[0], name, one, corrected[name], describe_difference(one.difference, corrected[name])
            )
            for name, one in found.items()
        ]
    return CompareResult(
        protocol=files[0][1].protocol,
        gallery=gallery,
        query=query,
        num_gallery=len(chosen[0].gallery),
        num_query=len(sources),
        num_sources=len(set(sources)),
        scores={
            name: {metric: 100 * float(values.mean()) for metric, values in one.items()}
            for name, one in zip(names, hits, strict=True)
        },
        comparisons=comparisons,
        features=[features.summary() for _, features in files],
    )


def _common_videos(files: Sequence[Features]) -> list[Features]:
    """Return the files with only the videos that all have, in one order; ValueError if they disagree about one."""
    protocols = sorted({one.protocol for one in files})
    if len(protocols) > 1:
        raise ValueError(f"the files have different protocols: {' and '.join(protocols)}")
    ids = [set(one.videos.ids) for one in files]
    keep = sorted(set.intersection(*ids))
    result = []
    for one in files:
        index_of = {video_id: index for index, video_id in enumerate(one.videos.ids)}
        indices = torch.tensor([index_of[video_id] for video_id in keep], dtype=torch.int64)
        result.append(replace(one, videos=one.videos.take(indices), features=one.features[indices]))
    for other in result[1:]:
        match_videos(result[0].videos, other.videos)
    return result


def _hits(
    queries: torch.Tensor,
    gallery: torch.Tensor,
    labels: torch.Tensor,
    gallery_labels: torch.Tensor,
    num_classes: int,
) -> dict[str, NDArray[np.bool_]]:
    """Return per metric (Q,) whether each query is answered correctly."""
    ranks = [k for k in RANKS if k <= len(gallery)]
    num_votes = min(NUM_VOTES, len(gallery))
    found = gallery_labels[nearest(queries, gallery, max(*ranks, num_votes))]  # (Q, K)
    correct = found == labels[:, None]
    hits = {f"R@{k}": correct[:, :k].any(1).numpy() for k in ranks}
    return hits | {f"kNN {num_votes}": (vote(found[:, :num_votes], num_classes) == labels).numpy()}
