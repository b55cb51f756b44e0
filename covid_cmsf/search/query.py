"""Find the videos that are most like a query, window by window.

Every window of the query is compared with every window of the index. A video's similarity to one query window is that
of its best window; its score is the mean over the query windows (the Chamfer similarity, as ViSiL, Kordopatis-Zilos et
al. 2019, uses it between videos). So a short query finds a moment inside a long video. Modalities are fused by adding
their scores.
"""

# Q query windows, W windows, N videos, D feature, K results

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.search.index import SearchIndex, WindowSet, modality_weights

BLOCK_VALUES = 32_000_000  # similarities at a time


@dataclass(frozen=True)
class Match:
    """One result: a video, its score (-1 to 1), and its window that is most like one of the query, in frames."""

    video: int  # index of the video
    score: float
    start: int
    end: int  # exclusive
    query_window: int
    by_modality: dict[str, float]  # the score of every modality, also of those that were not asked for
    ranks: dict[str, int] = field(default_factory=dict)  # the video's place, from 1, if each were asked alone

    def found_by(self) -> str:
        """Return the modality that alone would list this video first of all; of several, the one with most score."""
        return min(self.ranks, key=lambda name: (self.ranks[name], -self.by_modality[name]))


def search(
    index: SearchIndex,
    queries: Mapping[str, Tensor],
    *,
    top: int = 20,
    modality: str = "fused",
    exclude: frozenset[int] = frozenset(),
    candidates: Tensor | None = None,
) -> list[Match]:
    """Return the `top` videos most like the query, best first; equal scores are ordered by video.

    Args:
        index: where to search.
        queries: per modality the vectors of the query's windows, (Q, D), centered by `WindowSet.center`.
        top: number of videos.
        modality: one of the index, or fused.
        exclude: videos that are left out, such as the query itself.
        candidates: the only videos that are compared, ascending; None: all. Ranks are among them.
    """
    if top < 1:
        raise ValueError(f"top = {top}: must be at least 1")
    weights = modality_weights(index, modality)
    if missing := [name for name in weights if name not in queries or len(queries[name]) == 0]:
        raise ValueError(f"the query has no windows of {', '.join(missing)}")
    scores = {
        name: _video_scores(_take(index.windows[name], candidates), vectors, len(index.videos))
        for name, vectors in queries.items()
        if name in index.windows and len(vectors)
    }
    total = sum(weight * scores[name] for name, weight in weights.items())
    assert isinstance(total, np.ndarray)  # NaN where a video lacks a modality that was asked for
    total[list(exclude)] = np.nan
    found = _largest(total, top)
    for values in scores.values():
        values[list(exclude)] = np.nan  # they take no rank
    leading = max(weights, key=lambda name: weights[name])
    matches = []
    for video in found:
        start, query_window = _best_window(index.windows[leading], queries[leading], video)
        matches.append(
            Match(
                video=video,
                score=float(total[video]),
                start=start,
                end=start + index.windows[leading].span,
                query_window=query_window,
                by_modality={
                    name: float(values[video]) for name, values in scores.items() if values[video] == values[video]
                },
                ranks={
                    name: 1 + int((values > values[video]).sum())
                    for name, values in scores.items()
                    if values[video] == values[video]
                },
            )
        )
    return matches


def video_vectors(
    index: SearchIndex, video: int, *, start: int | None = None, end: int | None = None
) -> dict[str, Tensor]:
    """Return the vectors of an indexed video per modality; only windows that begin in the frames [start, end).

    If no window begins there, it is the one whose middle is nearest to the middle of the interval.
    """
    rows = {name: video_rows(windows, video, start=start, end=end) for name, windows in index.windows.items()}
    return {name: index.windows[name].vectors[chosen] for name, chosen in rows.items()}


def video_rows(windows: WindowSet, video: int, *, start: int | None = None, end: int | None = None) -> Tensor:
    """Return the rows of a video's windows that begin in the frames [start, end), as in `video_vectors`."""
    rows = windows.of_video(video)
    numbers = torch.arange(rows.start, rows.stop)
    return numbers[rows_between(windows.starts[rows], windows.span, start=start, end=end)]


def rows_between(starts: Tensor, span: int, *, start: int | None = None, end: int | None = None) -> Tensor:
    """Return which of the windows that begin at `starts` begin in [start, end); if none does, the nearest one."""
    if len(starts) == 0 or (start is None and end is None):
        return torch.arange(len(starts))
    low = 0 if start is None else start
    high = int(starts.max()) + span if end is None else end
    inside = (starts >= low) & (starts < high)
    if not inside.any():
        nearest: Tensor = (starts + span / 2 - (low + high) / 2).abs().argmin()
        return nearest.reshape(1)
    return inside.nonzero().flatten()


def _largest(values: np.ndarray, count: int) -> list[int]:
    """Return where the largest values are, largest first, of equal ones the first; NaN is left out."""
    known = np.flatnonzero(~np.isnan(values))
    if len(known) > count:  # sorting a million values takes longer than finding the smallest that counts
        smallest = np.partition(values[known], len(known) - count)[len(known) - count]
        known = known[values[known] >= smallest]
    order = np.lexsort((known, -values[known]))[:count]
    return [int(number) for number in known[order]]


def _take(windows: WindowSet, videos: Tensor | None) -> WindowSet:
    """Return the windows of some videos, ascending; all for None."""
    if videos is None:
        return windows
    bounds = torch.stack([torch.searchsorted(windows.videos, videos), torch.searchsorted(windows.videos, videos + 1)])
    rows = torch.cat([torch.zeros(0, dtype=torch.int64), *(torch.arange(low, high) for low, high in bounds.T.tolist())])
    return replace(windows, vectors=windows.vectors[rows], videos=windows.videos[rows], starts=windows.starts[rows])


def _video_scores(windows: WindowSet, queries: Tensor, num_videos: int) -> np.ndarray:
    """Return (N,) float64: mean over the queries of the best similarity within each video; NaN without windows."""
    totals = np.full(num_videos, np.nan)
    videos = windows.videos.numpy()  # ascending, so that nothing has to be sorted
    if len(videos) == 0:
        return totals
    bounds = np.concatenate([[0], np.flatnonzero(np.diff(videos)) + 1, [len(videos)]])
    present = videos[bounds[:-1]]
    block = max(1, BLOCK_VALUES // max(1, len(queries)))
    query_array = queries.float().numpy()
    low = 0
    while low < len(present):  # blocks of whole videos
        high = max(low + 1, int(np.searchsorted(bounds, bounds[low] + block, side="right")) - 1)
        vectors = windows.vectors[bounds[low] : bounds[high]].numpy()
        similarities = query_array @ vectors.T
        best = np.maximum.reduceat(similarities, bounds[low:high] - bounds[low], axis=1)
        totals[present[low:high]] = best.mean(axis=0, dtype=np.float64)
        low = high
    return totals


def _best_window(windows: WindowSet, queries: Tensor, video: int) -> tuple[int, int]:
    """Return the first frame of the video's best window, and the query window that it matches."""
    rows = windows.of_video(video)
    similarities = queries @ windows.vectors[rows].T  # (Q, windows of the video)
    flat = int(similarities.argmax())
    query_window, window = divmod(flat, similarities.shape[1])
    return int(windows.starts[rows][window]), query_window
