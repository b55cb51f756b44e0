"""The most similar videos of each video, without labels: "which of my videos are alike?"."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import torch

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.nearest import center_and_normalize, nearest_others


@dataclass(frozen=True)
class VideoNeighbors:
    """The nearest videos of a video, most similar first, and their cosine similarities."""

    video: str
    neighbors: list[str]
    similarities: list[float]


@dataclass(frozen=True)
class NeighborsResult:
    """Neighbors of the requested videos among all others of the file."""

    protocol: str
    num_videos: int
    videos: list[VideoNeighbors]
    features: list[dict[str, Any]] = field(default_factory=list)


def find_neighbors(features: Features, videos: Sequence[str] = (), *, k: int = 5) -> NeighborsResult:
    """Return the k nearest videos of each of `videos` (ids; default: all), among all videos of the file.

    The mean of all features is subtracted first; similarities are cosines.
    """
    ids = features.videos.ids
    index_of = {video_id: index for index, video_id in enumerate(ids)}
    for video_id in videos:
        if video_id not in index_of:
            similar = get_close_matches(video_id, ids[:10_000], n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else f"the first is {ids[0]!r}"
            raise ValueError(f"no video {video_id!r} among the {len(ids)} of this file; {hint}")
    asked = torch.tensor([index_of[video_id] for video_id in videos]) if videos else torch.arange(len(ids))
    unit, _ = center_and_normalize(features.features, features.features[:0], "train")
    found = nearest_others(unit, asked, k)  # (Q, K)
    similarities = [(unit[row] @ unit[index]).tolist() for row, index in zip(found, asked, strict=True)]
    return NeighborsResult(
        protocol=features.protocol,
        num_videos=len(ids),
        videos=[
            VideoNeighbors(ids[int(index)], [ids[i] for i in row.tolist()], [round(value, 6) for value in values])
            for index, row, values in zip(asked, found, similarities, strict=True)
        ],
        features=[features.summary()],
    )
