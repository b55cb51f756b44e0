"""Copies among the videos of an index, found once and kept beside it."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from covid_cmsf.clips.base import Clips
from covid_cmsf.files import file_sha256, read_json, write_text_atomic
from covid_cmsf.logs import progress_bar
from covid_cmsf.search.duplicates import Duplicate, Kind, find_duplicates, keep_thumbnails, propose_all
from covid_cmsf.search.index import SearchIndex
from covid_cmsf.search.project import INDEX_FILE
from covid_cmsf.search.thumbnails import read_thumbnails

COPIES_FILE = "duplicates.json"
HINT = "remove it, and the copies are looked for again"
Progress = Callable[[int, int], None]  # pairs that were compared, pairs in all


def find_copies(
    folder: Path, index: SearchIndex, clips: Clips, progress: Progress = lambda done, total: None
) -> list[Duplicate]:
    """Return the copies among the videos of the index in `folder`: as kept there, or found and then kept.

    Videos that are not in `clips` are left out.
    """
    kept = read_copies(folder)
    if kept is not None:
        return kept
    records = {record.video_id: record for record in clips.records}
    there = [number for number, video in enumerate(index.videos) if video.video_id in records]
    read = keep_thumbnails(lambda number: read_thumbnails(clips, records[index.videos[number].video_id]))
    with progress_bar("pictures", len(there)) as advance:
        pairs = propose_all(index, read, there, on_video=advance)
    done = 0
    progress(done, len(pairs))
    with progress_bar("pairs", len(pairs)) as advance:

        def on_pair() -> None:
            nonlocal done
            done += 1
            progress(done, len(pairs))
            advance()

        found = find_duplicates(pairs, read, on_pair=on_pair)
    keep_copies(folder, found)
    return found


def keep_copies(folder: Path, copies: Sequence[Duplicate]) -> None:
    """Write the copies beside the index."""
    content = {"index_sha256": file_sha256(folder / INDEX_FILE), "pairs": [asdict(one) for one in copies]}
    write_text_atomic(folder / COPIES_FILE, json.dumps(content, indent=1) + "\n")


def read_copies(folder: Path) -> list[Duplicate] | None:
    """Return what was found before; None if there is nothing, or it is of an earlier state of the index."""
    if not (folder / COPIES_FILE).is_file():
        return None
    content = read_json(folder / COPIES_FILE, hint=HINT)
    try:
        if content.get("index_sha256") != file_sha256(folder / INDEX_FILE):
            return None
        return [read_pair(pair) for pair in content["pairs"]]
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise ValueError(f"{folder / COPIES_FILE} is damaged ({type(error).__name__}: {error}); {HINT}") from None


def read_pair(values: Mapping[str, Any]) -> Duplicate:
    """Return what `asdict` made of a pair."""
    parts = {name: _read_part(values[name]) for name in ("first_part", "second_part")}
    numbers = {name: float(values[name]) for name in ("similarity", "share", "speed")}
    pair = Duplicate(**{**values, **parts, **numbers})
    if pair.kind not in get_args(Kind) or not all(
        isinstance(one, int) and one >= 0 for one in (pair.first, pair.second)
    ):
        raise ValueError(f"no pair of videos: {pair.first!r}, {pair.second!r}, {pair.kind!r}")
    return pair


def _read_part(values: Any) -> tuple[float, float]:
    start, end = map(float, values)
    return start, end
