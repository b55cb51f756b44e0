"""Which query videos a network answers correctly, by metric: as a small verified file, and paired with another network.

File, header `covid_cmsf_answers` with `format` and `metrics`:
    ids.*, sources.*    columns of the query videos: see `features/columns.py`
    hits.N              (Q,) int8 per metric: 1 right, 0 wrong, -1 not asked
"""

# Q queries, S seeds

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from covid_cmsf.evaluation.features.columns import decode_texts, encode_texts
from covid_cmsf.evaluation.paired import PairedHits
from covid_cmsf.evaluation.results import VideoHits
from covid_cmsf.verified_files import read_tensors, write_tensors

ANSWERS_FORMAT = 1
ANSWERS_HEADER = "covid_cmsf_answers"
NOT_ASKED = -1


@dataclass(frozen=True)
class Answers:
    """Right and wrong answers of one network. A metric may lack videos that could not be read for it."""

    sources: dict[str, str]  # {video id: source}
    hits: dict[str, dict[str, bool]]  # {metric: {video id: right}}

    @classmethod
    def from_hits(cls, by_metric: Mapping[str, VideoHits]) -> "Answers":
        """Collect the answers of several metrics."""
        sources = {
            video_id: source
            for one in by_metric.values()
            for video_id, source in zip(one.videos.ids, one.videos.sources, strict=True)
        }
        hits = {
            name: dict(zip(one.videos.ids, one.hits.bool().tolist(), strict=True)) for name, one in by_metric.items()
        }
        return cls(sources, hits)

    def score(self, metric: str) -> float:
        """Return the percentage of right answers."""
        values = self.hits[metric].values()
        return 100 * (sum(values) / len(values))


def save_answers(path: Path, answers: Answers) -> None:
    """Write an answers file."""
    ids = list(answers.sources)
    tensors = encode_texts("ids", ids) | encode_texts("sources", list(answers.sources.values()))
    for number, hits in enumerate(answers.hits.values()):
        values = [int(hits[video_id]) if video_id in hits else NOT_ASKED for video_id in ids]
        tensors[f"hits.{number}"] = torch.tensor(values, dtype=torch.int8)
    header = {"format": ANSWERS_FORMAT, "metrics": list(answers.hits)}
    write_tensors(path, tensors, metadata={ANSWERS_HEADER: json.dumps(header)})


def load_answers(path: Path) -> Answers:
    """Read an answers file; ValueError if it is another file, damaged, or inconsistent."""
    hint = "`covid-cmsf cotrain` writes it again if it is deleted"
    tensors, metadata = read_tensors(path, hint=hint)
    if ANSWERS_HEADER not in metadata:
        raise ValueError(f"{path} is a safetensors file, but not one of answers")
    metrics = _read_header(metadata[ANSWERS_HEADER], path, hint)
    ids, sources = (decode_texts(name, tensors, location=str(path)) for name in ("ids", "sources"))
    hits = {}
    for number, metric in enumerate(metrics):
        column = tensors.get(f"hits.{number}", torch.zeros(0))
        if column.dim() != 1 or not len(column) == len(ids) == len(sources):
            raise ValueError(f"{path}: {len(ids)} videos, but not as many answers in {metric}: {hint}")
        values = column.tolist()
        hits[metric] = {name: bool(one) for name, one in zip(ids, values, strict=True) if one != NOT_ASKED}
    if len(ids) != len(sources):
        raise ValueError(f"{path}: {len(ids)} videos, {len(sources)} sources: {hint}")
    return Answers(dict(zip(ids, sources, strict=True)), hits)


def _read_header(text: str, path: Path, hint: str) -> list[str]:
    """Return the names of the metrics."""
    try:
        header = json.loads(text)
        number, metrics = header["format"], [str(metric) for metric in header["metrics"]]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: its header is damaged ({type(error).__name__}: {error}): {hint}") from None
    if number != ANSWERS_FORMAT:
        raise ValueError(f"{path} has format {number!r}; this version reads format {ANSWERS_FORMAT}")
    return metrics


@dataclass(frozen=True)
class SeedAnswers:
    """Answers of one training run; without a number of its seed it is paired by its place."""

    seed: int | None
    answers: Answers


Runs = Mapping[str, Sequence[SeedAnswers]]  # training runs of one method by split


def pair_runs(first: Runs, second: Runs, metric: str) -> list[PairedHits]:
    """Pair the runs of two methods by split and seed, on the videos that all of them answered.

    Only seeds that both methods have in all of their common splits count; a method with a single run is compared with
    every seed of the other. The list is empty if there are none; ValueError if runs without seeds do not fit.
    """
    splits = [split for split in first if split in second]
    places = [_pair_seeds(first[split], second[split]) for split in splits]
    if not splits:
        return []
    seeds = [seed for seed in places[0] if all(seed in one for one in places)]
    paired = []
    for split, place in zip(splits, places, strict=True) if seeds else ():
        chosen = [place[seed] for seed in seeds]
        paired.append(
            _pair_videos(
                [first[split][index].answers for index, _ in chosen],
                [second[split][index].answers for _, index in chosen],
                metric,
            )
        )
    return paired


def _pair_seeds(first: Sequence[SeedAnswers], second: Sequence[SeedAnswers]) -> dict[int, tuple[int, int]]:
    """Return {seed: (index in first, index in second)}; runs without a seed are numbered by their place."""
    known = [[one.seed for one in runs if one.seed is not None] for runs in (first, second)]
    if len(known[0]) == len(first) and len(known[1]) == len(second):
        return {seed: (known[0].index(seed), known[1].index(seed)) for seed in known[0] if seed in known[1]}
    count = max(len(first), len(second))
    if any(len(runs) not in (1, count) for runs in (first, second)):
        raise ValueError(f"{len(first)} and {len(second)} seeds: give as many of both, or one")
    names = next((seeds for seeds in known if len(seeds) == count), range(count))
    return {seed: (min(i, len(first) - 1), min(i, len(second) - 1)) for i, seed in enumerate(names)}


def _pair_videos(first: Sequence[Answers], second: Sequence[Answers], metric: str) -> PairedHits:
    """Return the hits (S, Q) of both on the videos that all have."""
    together = [*first, *second]
    ids = [name for name in together[0].hits[metric] if all(name in one.hits[metric] for one in together)]
    if not ids:
        raise ValueError(f"the networks have no video in common that was asked for {metric}")
    rows = [
        np.array([[one.hits[metric][name] for name in ids] for one in runs], dtype=np.bool_) for runs in (first, second)
    ]
    return PairedHits(rows[0], rows[1], [together[0].sources[name] for name in ids])
