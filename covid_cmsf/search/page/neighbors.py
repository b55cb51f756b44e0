"""Neighbors for the page: of one query, and of all videos at once.

A result says which modalities found it: its score by each of them, and its rank where that modality alone is searched.
"""

# B query videos, Q their windows, W windows, N videos, K results

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.search.index import SearchIndex, WindowSet, modality_weights
from covid_cmsf.search.query import search

TOP = 20
BLOCK_VALUES = 16_000_000  # similarities at a time
Floats = NDArray[np.float64]


@dataclass
class Results:
    """The nearest videos of one query, best first."""

    videos: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)  # first frame of the best window
    by: dict[str, list[float | None]] = field(default_factory=dict)  # score by each modality
    ranks: dict[str, list[int]] = field(default_factory=dict)  # from 1; 0: not among the nearest by this modality alone

    def values(self) -> dict[str, Any]:
        """Return what the page reads."""
        return {"videos": self.videos, "scores": self.scores, "starts": self.starts, "by": self.by, "ranks": self.ranks}


def choices(index: SearchIndex) -> list[str]:
    """Return what the page can search by: fused first, if there is more than one modality."""
    return [*(["fused"] if len(index.windows) > 1 else []), *index.windows]


def leading_modality(index: SearchIndex, choice: str) -> str:
    """Return the modality whose windows are shown."""
    weights = modality_weights(index, choice)
    return max(weights, key=lambda name: weights[name])


def find_neighbors(
    index: SearchIndex,
    queries: Mapping[str, Tensor],
    choice: str,
    *,
    top: int = TOP,
    exclude: frozenset[int] = frozenset(),
) -> Results:
    """Return the nearest videos of a query: per modality the vectors of its windows, (Q, D)."""
    matches = search(index, queries, top=top, modality=choice, exclude=exclude)
    present = [name for name in index.windows if name in queries and len(queries[name])]
    alone = {}
    for name in present:
        found = search(index, {name: queries[name]}, top=top, modality=name, exclude=exclude)
        alone[name] = {match.video: rank for rank, match in enumerate(found, start=1)}
    return Results(
        videos=[match.video for match in matches],
        scores=[match.score for match in matches],
        starts=[match.start for match in matches],
        by={name: [match.by_modality.get(name) for match in matches] for name in present},
        ranks={name: [alone[name].get(match.video, 0) for match in matches] for name in present},
    )


def all_neighbors(index: SearchIndex, *, top: int = TOP) -> Iterator[dict[str, Results]]:
    """Yield per video, in order, its neighbors by every choice: what `find_neighbors` returns, in large products.

    Without results where a video has no windows of a modality that is asked for.
    """
    windows = max(len(one.videos) for one in index.windows.values())
    per_block = max(1, BLOCK_VALUES // max(1, windows * windows // max(1, len(index.videos))))
    for low in range(0, len(index.videos), per_block):
        yield from _block(index, range(low, min(low + per_block, len(index.videos))), top)


def _block(index: SearchIndex, videos: range, top: int) -> list[dict[str, Results]]:
    compared = {name: _Compared(one, videos, len(index.videos)) for name, one in index.windows.items()}
    nearest = {}
    for choice in choices(index):
        total = sum(weight * compared[name].scores for name, weight in modality_weights(index, choice).items())
        assert isinstance(total, np.ndarray)
        total[np.arange(len(videos)), np.arange(videos.start, videos.stop)] = np.nan
        nearest[choice] = [_nearest(row, top) for row in total], total
    found = []
    for row in range(len(videos)):
        rank_of = {name: {video: rank for rank, video in enumerate(nearest[name][0][row], 1)} for name in index.windows}
        by_choice = {}
        for choice, (lists, total) in nearest.items():
            chosen, leading = lists[row], compared[leading_modality(index, choice)]
            present = [name for name in index.windows if compared[name].counts[row]]
            by_choice[choice] = Results(
                videos=chosen,
                scores=[float(total[row, video]) for video in chosen],
                starts=[leading.best_start(row, video) for video in chosen],
                by={name: [_finite(compared[name].scores[row, video]) for video in chosen] for name in present},
                ranks={name: [rank_of[name].get(video, 0) for video in chosen] for name in present},
            )
        found.append(by_choice)
    return found


class _Compared:
    """Similarities of the windows of some videos (Q) with all windows (W), and scores (B, N), NaN without windows."""

    def __init__(self, windows: WindowSet, videos: range, num_videos: int) -> None:
        numbers = windows.videos.numpy()
        self.bounds = np.searchsorted(numbers, np.arange(num_videos + 1))  # of every video's windows
        self.first = int(self.bounds[videos.start])
        self.own = self.bounds[videos.start : videos.stop + 1] - self.first
        self.counts = np.diff(self.own)
        self.starts = windows.starts.numpy()
        vectors = windows.vectors.numpy()
        self.similarity = vectors[self.first : int(self.bounds[videos.stop])] @ vectors.T  # (Q, W)
        self.scores: Floats = np.full((len(videos), num_videos), np.nan)
        present = np.flatnonzero(np.diff(self.bounds))
        rows = np.flatnonzero(self.counts)
        if len(rows):
            best = np.maximum.reduceat(self.similarity, self.bounds[present], axis=1)  # (Q, present)
            sums = np.add.reduceat(best, self.own[:-1][rows], axis=0, dtype=np.float64)
            self.scores[np.ix_(rows, present)] = sums / self.counts[rows, None]

    def best_start(self, row: int, video: int) -> int:
        """Return the first frame of a video's window that is most like one of the query."""
        columns = slice(int(self.bounds[video]), int(self.bounds[video + 1]))
        part = self.similarity[int(self.own[row]) : int(self.own[row + 1]), columns]
        return int(self.starts[columns][int(part.argmax()) % part.shape[1]])


def _nearest(scores: Floats, top: int) -> list[int]:
    """Return the videos of the largest scores, equal ones by number; without NaN."""
    values = np.nan_to_num(scores, nan=-np.inf)
    some = np.argpartition(-values, top)[: top + 1] if len(values) > top else np.arange(len(values))
    order = some[np.lexsort((some, -values[some]))]
    return [int(video) for video in order if np.isfinite(values[video])][:top]


def _finite(value: float) -> float | None:
    return float(value) if value == value else None
