"""Two-stream fusion: similarities are added for retrieval, probabilities averaged for classification.

As in the two-stream results of Simonyan and Zisserman (2014) and Han et al. (2020). Videos are matched by id.
"""

# N videos, D feature, C classes

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features, Probabilities
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable
from covid_cmsf.evaluation.nearest import center_and_normalize, choose_centering
from covid_cmsf.evaluation.probes.linear import train_probe
from covid_cmsf.evaluation.results import Scores, compute_scores
from covid_cmsf.evaluation.retrieval import (
    GalleryAndQuery,
    RetrievalResult,
    neighbor_labels,
    pair_features,
    score_retrieval,
    select_subsets,
)


@dataclass(frozen=True)
class MatchedVideos:
    """Videos that two tables have in common, in the order of the first."""

    videos: VideoTable
    first: Tensor  # (N,) indices into the first table
    second: Tensor  # (N,) indices into the second table


def match_videos(first: VideoTable, second: VideoTable) -> MatchedVideos:
    """Match videos by id; ValueError if none is common, or if label, class, subset or source of one differ."""
    index_of = {video_id: index for index, video_id in enumerate(second.ids)}
    first_indices = [index for index, video_id in enumerate(first.ids) if video_id in index_of]
    if not first_indices:
        raise ValueError(f"the files have no video in common: {_example_id(first.ids)} and {_example_id(second.ids)}")
    second_indices = [index_of[first.ids[index]] for index in first_indices]
    first_videos, second_videos = first.take(torch.tensor(first_indices)), second.take(torch.tensor(second_indices))
    _check_equal("label", first_videos.ids, first_videos.labels.tolist(), second_videos.labels.tolist())
    _check_equal("class", first_videos.ids, _class_names(first_videos), _class_names(second_videos))
    _check_equal("subset of the split", first_videos.ids, first_videos.subsets, second_videos.subsets)
    _check_equal("source", first_videos.ids, first_videos.sources, second_videos.sources)
    names = max(first.class_names, second.class_names, key=len)  # one file may have more classes
    return MatchedVideos(
        replace(first_videos, class_names=names), torch.tensor(first_indices), torch.tensor(second_indices)
    )


def fuse_selected(first: GalleryAndQuery, second: GalleryAndQuery) -> GalleryAndQuery:
    """Return features of the same videos whose cosine similarity is the mean of those of both streams."""
    # The dot product of concatenated vectors is the sum of both similarities; 1/sqrt(2) makes it a cosine again.
    gallery, queries = (
        torch.cat(both, dim=1) / sqrt(2) for both in ((first.gallery, second.gallery), (first.queries, second.queries))
    )
    return replace(first, gallery=gallery, queries=queries)


def average_probabilities(first: Tensor, second: Tensor) -> Tensor:
    """Return the mean of two (N, C) probability tensors; classes that one lacks have probability 0 there."""
    width = max(first.shape[1], second.shape[1])
    padded = [F.pad(one.double(), (0, width - one.shape[1])) for one in (first, second)]
    return (padded[0] + padded[1]) / 2


def _class_names(videos: VideoTable) -> list[str]:
    return [videos.class_names[label] if label >= 0 else "" for label in videos.labels.tolist()]


def _check_equal(field: str, ids: Sequence[str], first: Sequence[Any], second: Sequence[Any]) -> None:
    differing = [i for i, (a, b) in enumerate(zip(first, second, strict=True)) if a != b]
    if differing:
        i = differing[0]
        raise ValueError(
            f"the files disagree about the {field} of {len(differing)} videos; {ids[i]!r}: {first[i]!r}, {second[i]!r}"
        )


def _example_id(ids: Sequence[str]) -> str:
    return f"{ids[0]!r}, ..." if ids else "none"


@dataclass(frozen=True)
class FusionResult:
    """Scores of the fused streams; `linear_streams` are those of each stream alone on the same videos."""

    protocol: str
    num_common: int
    num_only_first: int
    num_only_second: int
    retrieval: RetrievalResult
    linear: Scores
    linear_streams: tuple[Scores, Scores]
    features: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class ProbabilityFusionResult:
    """Scores of two averaged classifiers; `streams` are those of each alone on the same videos."""

    protocol: str
    num_common: int
    num_only_first: int
    num_only_second: int
    scores: Scores
    streams: tuple[Scores, Scores]
    features: list[dict[str, Any]] = field(default_factory=list)


def evaluate_fusion(
    first: Features,
    second: Features,
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    seed: int = 0,
) -> FusionResult:
    """Evaluate retrieval by summed cosine similarity and linear probes by averaged probability, on common videos."""
    _check_streams(first, second)
    matched = match_videos(first.videos, second.videos)
    centering_mode = choose_centering(centering, first.protocol)
    pair = select_subsets(
        matched.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_fraction=val_fraction, seed=seed
    )
    streams = [(first, matched.first), (second, matched.second)]
    stream_features = [
        center_and_normalize(one.features[indices[pair.gallery]], one.features[indices[pair.query]], centering_mode)
        for one, indices in streams
    ]
    fused = fuse_selected(
        *(pair_features(matched.videos, pair, *both, centering=centering_mode) for both in stream_features)
    )
    summaries = [first.summary(), second.summary()]
    retrieval = RetrievalResult(
        protocol=first.protocol,
        gallery=gallery,
        query=query,
        features=summaries,
        **score_retrieval(fused, neighbor_labels(fused), seed=seed),
    )
    stream_probabilities = [
        train_probe(one, indices[pair.gallery], indices[pair.query], val_fraction=val_fraction, seed=seed).probabilities
        for one, indices in streams
    ]
    test_videos = matched.videos.take(pair.query)
    stream_scores = [compute_scores(one, test_videos, seed=seed) for one in stream_probabilities]
    return FusionResult(
        protocol=first.protocol,
        num_common=len(matched.videos),
        num_only_first=len(first.videos) - len(matched.videos),
        num_only_second=len(second.videos) - len(matched.videos),
        retrieval=retrieval,
        linear=compute_scores(average_probabilities(*stream_probabilities), test_videos, seed=seed),
        linear_streams=(stream_scores[0], stream_scores[1]),
        features=summaries,
    )


def fuse_probabilities(first: Probabilities, second: Probabilities, *, seed: int = 0) -> ProbabilityFusionResult:
    """Average the probabilities of two classifiers on their common test videos."""
    if first.provenance.get("protocol") != second.provenance.get("protocol"):
        raise ValueError(
            f"protocols differ: {first.provenance.get('protocol')} and {second.provenance.get('protocol')}"
        )
    if first.provenance.get("fingerprint") == second.provenance.get("fingerprint"):
        raise ValueError("both files hold probabilities of the same classifier: nothing to fuse")
    matched = match_videos(first.videos, second.videos)
    stream_probabilities = [first.probabilities[matched.first], second.probabilities[matched.second]]
    stream_scores = [compute_scores(one, matched.videos, seed=seed) for one in stream_probabilities]
    return ProbabilityFusionResult(
        protocol=str(first.provenance.get("protocol")),
        num_common=len(matched.videos),
        num_only_first=len(first.videos) - len(matched.videos),
        num_only_second=len(second.videos) - len(matched.videos),
        scores=compute_scores(average_probabilities(*stream_probabilities), matched.videos, seed=seed),
        streams=(stream_scores[0], stream_scores[1]),
        features=[first.provenance, second.provenance],
    )


def _check_streams(first: Features, second: Features) -> None:
    if first.protocol != second.protocol:
        raise ValueError(f"the files have different protocols: {first.protocol} and {second.protocol}")
    if (
        first.provenance.weights_sha256 == second.provenance.weights_sha256
        and first.provenance.eval_protocol == second.provenance.eval_protocol
    ):
        raise ValueError("both files hold features of the same encoder and modality: nothing to fuse")
