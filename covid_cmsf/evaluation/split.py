"""The videos of a split, and those that the split names but the clips do not have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.manifest import ClipRecord, read_split


@dataclass(frozen=True)
class SplitVideos:
    """`parts[i]` is the part (train, test, val) of `records[i]`; `missing` has id, part and reason."""

    name: str
    records: tuple[ClipRecord, ...]
    parts: tuple[str, ...]
    missing: tuple[tuple[str, str, str], ...]


def split_videos(clips: Clips, name: str | None = None) -> SplitVideos:
    """The videos of the split called `name` (or in the CSV file of that name), in the clips' own order.

    Without a name: the split "1", or the only one there is.
    """
    chosen, table = _table(clips, name)
    there = {record.video_id for record in clips.records}
    records = tuple(record for record in clips.records if record.video_id in table)
    if not records:
        raise ValueError(f"none of the {len(table)} videos of split {chosen!r} is among these clips")
    reasons = {failure.video_id: f"{failure.stage}: {failure.reason}" for failure in getattr(clips, "failures", [])}
    missing = tuple(
        (video_id, part, reasons.get(video_id, "not among the clips"))
        for video_id, part in sorted(table.items())
        if video_id not in there
    )
    return SplitVideos(chosen, records, tuple(table[record.video_id] for record in records), missing)


def _table(clips: Clips, name: str | None) -> tuple[str, Mapping[str, str]]:
    """The split's name and {video_id: part}."""
    if name is not None and name.endswith(".csv"):
        return Path(name).stem, read_split(Path(name))
    if name is None and ("1" in clips.splits or len(clips.splits) == 1):
        name = "1" if "1" in clips.splits else next(iter(clips.splits))
    if name is None or name not in clips.splits:
        there = ", ".join(clips.splits) or "none; name a CSV file with columns video_id,split"
        raise ValueError(f"{f'no split {name!r}' if name else 'say which split'}; there are: {there}")
    return name, clips.splits[name]
