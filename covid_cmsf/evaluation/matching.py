"""Which rows of two files mean the same video, and do the files agree about it?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.videos import Videos


@dataclass(frozen=True)
class Matched:
    """Rows of two tables that mean the same videos, in the order of the first."""

    videos: Videos
    first: Tensor  # rows in the first table
    second: Tensor


def match(first: Videos, second: Videos) -> Matched:
    """The common videos; ValueError when there are none or the tables contradict each other about one."""
    place = {video_id: row for row, video_id in enumerate(second.ids)}
    rows = [row for row, video_id in enumerate(first.ids) if video_id in place]
    if not rows:
        raise ValueError(f"the files have no video in common: {_example(first.ids)} and {_example(second.ids)}")
    others = [place[first.ids[row]] for row in rows]
    mine, theirs = first.take(torch.tensor(rows)), second.take(torch.tensor(others))
    _check_equal("label", mine.ids, mine.labels.tolist(), theirs.labels.tolist())
    _check_equal("class", mine.ids, _classes(mine), _classes(theirs))
    _check_equal("part of the split", mine.ids, mine.parts, theirs.parts)
    _check_equal("source", mine.ids, mine.sources, theirs.sources)
    names = max(first.class_names, second.class_names, key=len)  # one may know classes that the other lacks
    return Matched(replace(mine, class_names=names), torch.tensor(rows), torch.tensor(others))


def mean_answer(first: Tensor, second: Tensor) -> Tensor:
    """The mean of two (N, C) tables of probabilities; classes that one does not know have probability 0 there."""
    width = max(first.shape[1], second.shape[1])
    wide = [F.pad(one.double(), (0, width - one.shape[1])) for one in (first, second)]
    return (wide[0] + wide[1]) / 2


def _classes(videos: Videos) -> list[str]:
    return [videos.class_names[label] if label >= 0 else "" for label in videos.labels.tolist()]


def _check_equal(what: str, ids: Sequence[str], first: Sequence[Any], second: Sequence[Any]) -> None:
    differing = [i for i, (ours, yours) in enumerate(zip(first, second, strict=True)) if ours != yours]
    if differing:
        i = differing[0]
        raise ValueError(
            f"the files disagree about the {what} of {len(differing)} videos; {ids[i]!r}: {first[i]!r}, {second[i]!r}"
        )


def _example(ids: Sequence[str]) -> str:
    return f"{ids[0]!r}, ..." if ids else "none"
