"""Measures that need no labels: effective rank, a video's other window, its source's other clips, neighbor agreement.

Every stage of a plan has them; where there are labels, R@1 and linear accuracy stand beside them.
"""

# N videos, D feature, K neighbors

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.nearest import center_and_normalize, nearest, nearest_others
from covid_cmsf.models.effective_rank import effective_rank

NUM_NEIGHBORS = 10
MAX_QUERIES = 10_000  # evenly spaced; more would only narrow the estimate


@dataclass(frozen=True)
class Agreement:
    """Mean share, in percent, of a video's k nearest videos that are the same in both files; `chance`: of random k."""

    modality: str  # of the other features
    percent: float
    chance: float
    k: int
    num_videos: int  # in both files


@dataclass(frozen=True)
class LabelFreeMeasures:
    """What features show without labels. Percentages; None where no video can be asked.

    That is so for windows where no video has two without common frames, and for sources where none has two videos.
    """

    num_videos: int
    effective_rank: float  # of all features
    window_r1: float | None  # percentage of videos whose first window finds their own last window among all videos'
    window_chance: float | None
    num_window_videos: int
    source_r1: float | None  # percentage of videos whose nearest other video is of their own source
    source_chance: float | None
    num_source_videos: int  # whose source has another video
    agreement: list[Agreement] = field(default_factory=list)  # one per other file


def label_free_measures(
    features: Features, others: Sequence[Features] = (), *, k: int = NUM_NEIGHBORS
) -> LabelFreeMeasures:
    """Measure the features of all videos, whatever their subset; `others` are features of other networks.

    Of `others`, those of another modality are the interesting ones: two networks that see different things and find
    the same neighbors have learned something about the videos. Videos are matched by id.
    """
    window_r1, num_window_videos = window_retrieval(features)
    source_r1, source_chance, num_source_videos = source_retrieval(features)
    return LabelFreeMeasures(
        num_videos=len(features.videos),
        effective_rank=effective_rank(features.features),
        window_r1=window_r1,
        window_chance=None if window_r1 is None else 100 / num_window_videos,
        num_window_videos=num_window_videos,
        source_r1=source_r1,
        source_chance=source_chance,
        num_source_videos=num_source_videos,
        agreement=[neighbor_agreement(features, other, k=k) for other in others],
    )


def window_retrieval(features: Features) -> tuple[float | None, int]:
    """Return the percentage of videos whose first window finds their own last one, and how many were asked.

    Only videos whose first and last window have no frame in common take part: others would find the same frames.
    """
    protocol = features.provenance.eval_protocol
    first, last = first_and_last_windows(features.window_videos, len(features.videos))
    distance = features.window_starts[last] - features.window_starts[first]
    apart = (distance >= protocol.length * protocol.stride).nonzero().flatten()
    if len(apart) < 2:
        return None, len(apart)
    last_windows, first_windows = (F.normalize(features.windows[one[apart]], dim=1) for one in (last, first))
    gallery, queries = center_and_normalize(last_windows, first_windows, "train")
    asked = _spread(len(apart))
    found = nearest(queries[asked], gallery, 1)[:, 0]
    return 100 * float((found == asked).double().mean()), len(apart)


def source_retrieval(features: Features) -> tuple[float | None, float | None, int]:
    """Return the percentage of videos whose nearest other video is of their source, chance, and how many were asked.

    Asked are the videos whose source has another one; all videos are searched. Chance is that of a random other video.
    """
    sources = features.videos.sources
    sizes = Counter(sources)
    siblings = torch.tensor([i for i, source in enumerate(sources) if sizes[source] > 1], dtype=torch.int64)
    if len(siblings) == 0:
        return None, None, 0
    unit, _ = center_and_normalize(features.features, features.features[:0], "train")
    asked = siblings[_spread(len(siblings))]
    found = nearest_others(unit, asked, 1)[:, 0]
    hits = [sources[i] == sources[j] for i, j in zip(asked.tolist(), found.tolist(), strict=True)]
    others = [sizes[sources[i]] - 1 for i in asked.tolist()]
    chance = 100 * sum(others) / len(others) / (len(sources) - 1)
    return 100 * sum(hits) / len(hits), chance, len(siblings)


def first_and_last_windows(window_videos: Tensor, num_videos: int) -> tuple[Tensor, Tensor]:
    """Return the index (N,) of each video's first and of its last window; a file has a video's windows in order."""
    indices, num_windows = torch.arange(len(window_videos)), len(window_videos)
    first = torch.full((num_videos,), num_windows).scatter_reduce_(0, window_videos, indices, "amin")
    last = torch.full((num_videos,), -1).scatter_reduce_(0, window_videos, indices, "amax")
    return first, last


def neighbor_agreement(first: Features, second: Features, *, k: int = NUM_NEIGHBORS) -> Agreement:
    """Compare the k nearest videos of every video in two files, over the videos that both have."""
    index_of = {video_id: index for index, video_id in enumerate(second.videos.ids)}
    pairs = [(i, index_of[video_id]) for i, video_id in enumerate(first.videos.ids) if video_id in index_of]
    k = min(k, len(pairs) - 1)
    if k < 1:
        raise ValueError(f"neighbor agreement needs at least two videos in both files; these have {len(pairs)}")
    asked = _spread(len(pairs))
    found = []
    for features, column in ((first, 0), (second, 1)):
        values = features.features[torch.tensor([pair[column] for pair in pairs])]
        unit, _ = center_and_normalize(values, values[:0], "train")
        found.append(nearest_others(unit, asked, k))
    common = (found[0][:, :, None] == found[1][:, None, :]).any(2).sum(1)  # (Q,)
    return Agreement(
        modality=second.provenance.eval_protocol.modality,
        percent=100 * float(common.double().mean()) / k,
        chance=100 * k / (len(pairs) - 1),
        k=k,
        num_videos=len(pairs),
    )


def _spread(count: int) -> Tensor:
    """Return all indices below `count`, or MAX_QUERIES of them, evenly spaced."""
    return torch.arange(count) if count <= MAX_QUERIES else torch.linspace(0, count - 1, MAX_QUERIES).long()
