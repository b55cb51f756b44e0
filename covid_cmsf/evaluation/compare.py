"""Compare networks on the same queries: is one better than another, or is it chance? R@k, kNN and linear, paired.

Every method is compared with the first. A method may have several training runs: seeds, splits, or both. Of several
methods the p values are corrected for their number (Holm 1979), for each metric by itself.
"""

# Q query videos

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from covid_cmsf.evaluation.answers import Answers, Runs, SeedAnswers, pair_runs
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION
from covid_cmsf.evaluation.fusion import average_probabilities, fuse_selected, match_videos
from covid_cmsf.evaluation.knn import vote
from covid_cmsf.evaluation.nearest import nearest
from covid_cmsf.evaluation.paired import PairedDifference, describe_difference, difference_over_splits, holm
from covid_cmsf.evaluation.probes.linear import measure_linear, train_probe
from covid_cmsf.evaluation.results import VideoHits, top1_hits
from covid_cmsf.evaluation.retrieval import GalleryAndQuery, select_gallery_and_query, select_subsets

RANKS = (1, 5, 10)
NUM_VOTES = 20
LINEAR = "linear"


@dataclass(frozen=True)
class MethodRun:
    """Features of one training run of a method; runs of one method are its seeds and splits."""

    method: str
    features: Features
    seed: int | None = None  # None: paired with the other method's runs by its place
    second: Features | None = None  # of another network: both are fused, as in `evaluate_fusion`

    @property
    def streams(self) -> tuple[Features, ...]:
        """The features, of one network or two."""
        return (self.features,) if self.second is None else (self.features, self.second)


@dataclass(frozen=True)
class Comparison:
    """One method against the first, by one metric."""

    metric: str  # R@1, R@5, ..., kNN 20, linear
    first: str  # names of the methods
    second: str
    difference: PairedDifference
    corrected_p: float  # for the number of methods
    verdict: str  # of the second: better, worse, no difference shown


@dataclass(frozen=True)
class CompareResult:
    """Scores of all methods in percent, and each method against the first."""

    protocol: str
    gallery: str
    query: str
    num_gallery: int  # sums over splits
    num_query: int
    num_sources: int
    splits: tuple[str, ...]
    scores: dict[str, dict[str, float]]  # {method: {metric: percent}}; means over splits and seeds
    comparisons: list[Comparison]
    features: list[dict[str, Any]] = field(default_factory=list)


def compare_runs(
    runs: Sequence[MethodRun],
    *,
    gallery: str = "train",
    query: str = "test",
    centering: str | None = None,
    allow_shared_sources: bool = False,
    val_fraction: float = VAL_FRACTION,
    linear: bool = True,
    seed: int = 0,
) -> CompareResult:
    """Compare methods, each with the first, on the videos that all runs of a split have.

    `linear` trains a probe per run, by the protocol of the features.
    """
    methods = list(dict.fromkeys(run.method for run in runs))
    if len(methods) < 2:
        raise ValueError("a comparison needs at least two methods; runs of one name are seeds of one method")
    splits = _check_runs(runs, methods)
    subsets: dict[str, Any] = {"allow_shared_sources": allow_shared_sources, "val_fraction": val_fraction, "seed": seed}
    answers: dict[str, dict[str, list[SeedAnswers]]] = {name: {split: [] for split in splits} for name in methods}
    num_gallery = num_query = num_sources = 0
    for split in splits:
        chosen = [run for run in runs if run.features.provenance.split == split]
        common = iter(_common_videos([one for run in chosen for one in run.streams]))
        for run in chosen:
            streams = [next(common) for _ in run.streams]
            by_stream = [
                select_gallery_and_query(one, gallery, query, centering=centering, **subsets) for one in streams
            ]
            selected = by_stream[0] if len(by_stream) == 1 else fuse_selected(*by_stream)
            hits = neighbor_hits(selected)
            if linear:
                hits[LINEAR] = linear_hits(streams, gallery=gallery, query=query, **subsets)
            answers[run.method][split].append(SeedAnswers(run.seed, Answers.from_hits(hits)))
        num_gallery += len(selected.gallery)
        num_query += len(selected.queries)
        num_sources += len(set(selected.query_sources))
    return CompareResult(
        protocol=runs[0].features.protocol,
        gallery=gallery,
        query=query,
        num_gallery=num_gallery,
        num_query=num_query,
        num_sources=num_sources,
        splits=tuple(splits),
        scores={name: _mean_scores(answers[name]) for name in methods},
        comparisons=compare_answers(answers, seed=seed),
        features=[one.summary() for run in runs for one in run.streams],
    )


def compare_answers(answers: Mapping[str, Runs], *, seed: int = 0) -> list[Comparison]:
    """Compare every method with the first; `answers` maps their names to their `Runs`."""
    first, *others = answers
    metrics = next(iter(answers[first].values()))[0].answers.hits
    comparisons = []
    for metric in metrics:
        found: dict[str, PairedDifference] = {}
        for name in others:
            pairs = pair_runs(answers[first], answers[name], metric)
            if not pairs:
                raise ValueError(f"{first} and {name} have no seed in common")
            found[name] = difference_over_splits(pairs, seed=seed)
        corrected = holm({name: one.p_value for name, one in found.items()})
        comparisons += [
            Comparison(metric, first, name, one, corrected[name], describe_difference(one.difference, corrected[name]))
            for name, one in found.items()
        ]
    return comparisons


def neighbor_hits(selected: GalleryAndQuery) -> dict[str, VideoHits]:
    """Return which queries are answered correctly in R@k and by kNN."""
    ranks = [k for k in RANKS if k <= len(selected.gallery)]
    num_votes, labels = min(NUM_VOTES, len(selected.gallery)), selected.query_labels
    neighbors = nearest(selected.queries, selected.gallery, max(*ranks, num_votes))
    found = selected.gallery_labels[neighbors]  # (Q, K)
    correct = found == labels[:, None]
    hits = {f"R@{k}": correct[:, :k].any(1) for k in ranks}
    hits[f"kNN {num_votes}"] = vote(found[:, :num_votes], len(selected.class_names)) == labels
    return {name: VideoHits(selected.query_videos, hit) for name, hit in hits.items()}


def linear_hits(streams: Sequence[Features], *, gallery: str, query: str, **subsets: Any) -> VideoHits:
    """Return which queries the linear probe predicts correctly; of two streams, the mean of two probes."""
    if len(streams) == 1:
        return measure_linear(streams[0], gallery=gallery, query=query, **subsets)[1]
    pair = select_subsets(streams[0].videos, gallery, query, **subsets)
    options = {name: subsets[name] for name in ("val_fraction", "seed")}
    first, second = (train_probe(one, pair.gallery, pair.query, **options).probabilities for one in streams)
    return top1_hits(average_probabilities(first, second), streams[0].videos.take(pair.query))


def _check_runs(runs: Sequence[MethodRun], methods: Sequence[str]) -> list[str]:
    """Return the splits; ValueError if protocols or splits differ, or features are given twice."""
    protocols = sorted({one.protocol for run in runs for one in run.streams})
    if len(protocols) > 1:
        raise ValueError(f"the files have different protocols: {' and '.join(protocols)}")
    for run in runs:
        if run.second is not None and run.second.provenance.split != run.features.provenance.split:
            raise ValueError(f"{run.method}: both networks have to be measured on the same split")
    splits = {name: sorted({r.features.provenance.split for r in runs if r.method == name}) for name in methods}
    for name in methods[1:]:
        if splits[name] != splits[methods[0]]:
            raise ValueError(
                f"{methods[0]} was measured on split {', '.join(splits[methods[0]])}, {name} on "
                f"{', '.join(splits[name])}: compare runs of the same splits"
            )
    for name in methods:
        # Seeds of a plan may have equal features: those of a histogram.
        prints = [r.features.provenance.fingerprint for r in runs if r.method == name and r.seed is None]
        if len(set(prints)) < len(prints):
            raise ValueError(f"{name} has the same features twice")
    return splits[methods[0]]


def _common_videos(files: Sequence[Features]) -> list[Features]:
    """Return the files with only the videos that all have, in one order; ValueError if they disagree about one."""
    keep = sorted(set.intersection(*(set(one.videos.ids) for one in files)))
    result = []
    for one in files:
        index_of = {video_id: index for index, video_id in enumerate(one.videos.ids)}
        indices = torch.tensor([index_of[video_id] for video_id in keep], dtype=torch.int64)
        result.append(replace(one, videos=one.videos.take(indices), features=one.features[indices]))
    for other in result[1:]:
        match_videos(result[0].videos, other.videos)
    return result


def _mean_scores(runs: Runs) -> dict[str, float]:
    """Return the mean over splits of the means over seeds, by metric."""
    metrics = next(iter(runs.values()))[0].answers.hits
    return {
        metric: sum(sum(one.answers.score(metric) for one in split) / len(split) for split in runs.values()) / len(runs)
        for metric in metrics
    }
