"""Two streams together: similarities are added for retrieval, probabilities averaged for classification.

As in the two-stream results of Simonyan and Zisserman (2014) and Han et al. (2020). Videos are matched by their id.
"""

# N videos, D feature, C classes

from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import torch

from covid_cmsf.evaluation.centering import choose_centering, comparable
from covid_cmsf.evaluation.features import Features
from covid_cmsf.evaluation.linear import train_probe
from covid_cmsf.evaluation.matching import match, mean_answer
from covid_cmsf.evaluation.parts import VAL_SHARE
from covid_cmsf.evaluation.probabilities import Probabilities
from covid_cmsf.evaluation.retrieval import RetrievalResult, parts_for_retrieval, score_retrieval
from covid_cmsf.evaluation.scores import Scores, score


@dataclass(frozen=True)
class FusionResult:
    """`linear_streams` are the scores of each stream alone on the same videos."""

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
    """Two trained classifiers, averaged, and each of them alone on the same videos."""

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
    val_share: float = VAL_SHARE,
    seed: int = 0,
) -> FusionResult:
    """Retrieval by summed cosine similarity, linear by averaged probability, on the videos that both files have."""
    _check_streams(first, second)
    matched = match(first.videos, second.videos)
    chosen = choose_centering(centering, first.protocol)
    pair = parts_for_retrieval(
        matched.videos, gallery, query, allow_shared_sources=allow_shared_sources, val_share=val_share, seed=seed
    )
    streams = [(first, matched.first), (second, matched.second)]
    sides = [comparable(one.features[rows[pair[0]]], one.features[rows[pair[1]]], chosen) for one, rows in streams]
    # The dot product of joined vectors is the sum of the streams' similarities; halved, it stays a cosine.
    known, asked = (torch.cat(both, dim=1) / sqrt(2) for both in zip(*sides, strict=True))
    summaries = [first.summary(), second.summary()]
    retrieval = RetrievalResult(
        protocol=first.protocol,
        gallery=gallery,
        query=query,
        centering=chosen,
        features=summaries,
        **score_retrieval(matched.videos, pair, known, asked, seed=seed),
    )
    answers = [
        train_probe(one, rows[pair[0]], rows[pair[1]], val_share=val_share, seed=seed).probabilities
        for one, rows in streams
    ]
    tested = matched.videos.take(pair[1])
    alone = [score(one, tested, seed=seed) for one in answers]
    return FusionResult(
        protocol=first.protocol,
        num_common=len(matched.videos),
        num_only_first=len(first.videos) - len(matched.videos),
        num_only_second=len(second.videos) - len(matched.videos),
        retrieval=retrieval,
        linear=score(mean_answer(*answers), tested, seed=seed),
        linear_streams=(alone[0], alone[1]),
        features=summaries,
    )


def fuse_probabilities(first: Probabilities, second: Probabilities, *, seed: int = 0) -> ProbabilityFusionResult:
    """The mean of what two classifiers say about the test videos that both saw."""
    if first.about.get("protocol") != second.about.get("protocol"):
        raise ValueError(f"protocols differ: {first.about.get('protocol')} and {second.about.get('protocol')}")
    if first.about.get("fingerprint") == second.about.get("fingerprint"):
        raise ValueError("both files hold the answers of the same classifier: nothing to fuse")
    matched = match(first.videos, second.videos)
    answers = [first.probabilities[matched.first], second.probabilities[matched.second]]
    alone = [score(one, matched.videos, seed=seed) for one in answers]
    return ProbabilityFusionResult(
        protocol=str(first.about.get("protocol")),
        num_common=len(matched.videos),
        num_only_first=len(first.videos) - len(matched.videos),
        num_only_second=len(second.videos) - len(matched.videos),
        scores=score(mean_answer(*answers), matched.videos, seed=seed),
        streams=(alone[0], alone[1]),
        features=[first.about, second.about],
    )


def _check_streams(first: Features, second: Features) -> None:
    if first.protocol != second.protocol:
        raise ValueError(f"one file was made by protocol {first.protocol}, the other by {second.protocol}")
    if first.about.weights_sha256 == second.about.weights_sha256 and first.about.showing == second.about.showing:
        raise ValueError("both files hold features of the same encoder, shown the same modality: nothing to fuse")
