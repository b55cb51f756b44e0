"""Cuts: clips that are a part of a longer video file, from `cut_start` to before `cut_end`, in seconds.

Both are 0 for a whole file; a `cut_end` of 0 is the end of the file.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar

from covid_cmsf.clips.records import ClipRecord, get_column


class HasCut(Protocol):
    """A record or a listed video."""

    @property
    def cut_start(self) -> float: ...

    @property
    def cut_end(self) -> float: ...


Clip = TypeVar("Clip", bound=HasCut)


def cut_times(clip: HasCut) -> tuple[float, float]:
    """Return start and end in seconds; the end is infinite if the clip goes on to the end of the file."""
    return clip.cut_start, clip.cut_end or math.inf


def describe_content(record: ClipRecord) -> str:
    """Return a text that is equal for clips of the same frames: hash and times; empty if the hash is unknown."""
    return _content(record.source_sha256, record.cut_start, record.cut_end)


def describe_contents(records: Sequence[ClipRecord]) -> list[str]:
    """Return `describe_content` of all records; of a table of columns, without making the records."""
    columns = (get_column(records, name) for name in ("source_sha256", "cut_start", "cut_end"))
    return [_content(*values) for values in zip(*columns, strict=True)]


def _content(source_sha256: str, cut_start: float, cut_end: float) -> str:
    if not source_sha256 or (cut_start == 0 and cut_end in (0, math.inf)):
        return source_sha256
    return f"{source_sha256} {cut_start!r} {cut_end!r}"


def group_overlapping(clips: Sequence[Clip]) -> Iterator[list[Clip]]:
    """Yield the clips of one file, by start, in groups; each has frames in common with another of its group, if any."""
    group: list[Clip] = []
    group_end = -math.inf
    for clip in sorted(clips, key=cut_times):
        start, end = cut_times(clip)
        if start >= group_end and group:
            yield group
            group = []
        group.append(clip)
        group_end = max(group_end, end)
    if group:
        yield group
