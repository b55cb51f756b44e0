"""A user's own list of videos, CSV or JSONL: files, and clips that are cut out of longer files.

Columns (keys): `file`, relative to the list's folder; and, where wanted, `id`, `label`, `source`, `subset`, and `start`
and `end` in seconds. All mistakes of a list are reported at once, by line.
"""

import csv
import io
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from covid_cmsf.clips.cuts import cut_times, group_overlapping
from covid_cmsf.clips.decoders import header_seconds, open_video
from covid_cmsf.clips.names import invalid_id_reason
from covid_cmsf.config import suggest
from covid_cmsf.files import read_text
from preprocess.layouts.collection import Collection, Video, make_labels, make_video_ids
from preprocess.layouts.folders import split_by_source

COLUMNS = ("file", "id", "label", "source", "subset", "start", "end")
SUBSETS = ("train", "test", "val")
SUFFIXES = (".csv", ".jsonl")
MAX_SHOWN = 20  # mistakes


@dataclass(frozen=True)
class Row:
    """One row of a list: the line where it ends, and the text of its cells that are not empty."""

    line: int
    cells: dict[str, str]


@dataclass(frozen=True)
class ListedVideo:
    """A video, the line and subset that it has in the list, and what identifies its file."""

    line: int
    video: Video
    subset: str
    file_identity: tuple[int, int]

    @property
    def cut_start(self) -> float:
        """Start in seconds."""
        return self.video.cut_start

    @property
    def cut_end(self) -> float:
        """End in seconds; 0: that of the file."""
        return self.video.cut_end


class Mistakes:
    """The mistakes of a list, by line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: list[tuple[int, str]] = []
        self._all_missing = True  # only files that do not exist

    def add(self, line: int, message: str, *, is_missing_file: bool = False) -> None:
        """Add a mistake."""
        self._found.append((line, message))
        self._all_missing = self._all_missing and is_missing_file

    def raise_if_any(self) -> None:
        """Raise one error that has a line per mistake: FileNotFoundError if files are missing and all else is right."""
        if not self._found:
            return
        lines = [f"{self._path}, line {line}: {message}" for line, message in sorted(self._found)]
        if len(lines) > 1:
            more = [f"and {len(lines) - MAX_SHOWN} more"] if len(lines) > MAX_SHOWN else []
            lines = [f"{len(lines)} mistakes, nothing was started:", *lines[:MAX_SHOWN], *more]
        raise (FileNotFoundError if self._all_missing else ValueError)("\n  ".join(lines))


def is_video_list(path: Path) -> bool:
    """Return whether a path is that of a list rather than of a folder."""
    return path.suffix.lower() in SUFFIXES and not path.is_dir()


def scan_list(path: Path, *, test_fraction: float | None, seed: int) -> Collection:
    """Read a list. Subsets are those of the list, else drawn by source with a `test_fraction`, else all train."""
    if path.suffix.lower() not in SUFFIXES:
        raise ValueError(f"{path} is no list of videos: its name must end in {' or '.join(SUFFIXES)}")
    mistakes = Mistakes(path)
    rows = list(_read_jsonl(path, mistakes) if path.suffix.lower() == ".jsonl" else _read_csv(path, mistakes))
    mistakes.raise_if_any()
    if not rows:
        raise ValueError(f"{path} lists no videos; it needs a header with the column file, and a row per video")
    has_subsets = any("subset" in row.cells for row in rows)
    if has_subsets and test_fraction is not None:
        raise ValueError(f"{path} has subsets of its own; leave --test-fraction out")
    listed = list(_parse_rows(rows, path.parent, mistakes, has_subsets=has_subsets))
    _check_ids(listed, mistakes)
    _check_overlaps(listed, mistakes)
    warnings = _check_lengths(listed, mistakes)
    mistakes.raise_if_any()
    labels = make_labels(sorted({one.video.class_name for one in listed} - {""}))
    videos = [replace(one.video, label=labels.get(one.video.class_name, -1)) for one in listed]
    split = {one.video.video_id: one.subset for one in listed}
    if test_fraction is not None:
        split = split_by_source(videos, test_fraction, seed)
    return Collection(sorted(videos, key=lambda video: video.video_id), {"1": split}, warnings)


# Reading


def _read_csv(path: Path, mistakes: Mistakes) -> Iterator[Row]:
    reader = csv.reader(io.StringIO(read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in next(reader, [])]
        if len(set(header)) != len(header):
            mistakes.add(1, f"a column is there twice: {', '.join(header)}")
        _check_columns(1, header, mistakes)
        for cells in reader:
            if not any(cell.strip() for cell in cells):
                continue
            if len(cells) != len(header):
                mistakes.add(reader.line_num, f"{len(cells)} cells, the header has {len(header)}")
                continue
            texts = {name: cell.strip() for name, cell in zip(header, cells, strict=True)}
            yield Row(reader.line_num, {name: text for name, text in texts.items() if text})
    except csv.Error as error:
        mistakes.add(reader.line_num, f"not CSV: {error}")


def _read_jsonl(path: Path, mistakes: Mistakes) -> Iterator[Row]:
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        if not text.strip():
            continue
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:  # ValueError: also for an integer of thousands of digits
            mistakes.add(line, f"not JSON: {error}")
            continue
        if not isinstance(values, dict):
            mistakes.add(line, f'{text.strip()[:40]!r} is not an object like {{"file": "a.mp4"}}')
            continue
        _check_columns(line, values, mistakes)
        cells: dict[str, str] = {}
        for name, value in values.items():
            if isinstance(value, bool) or not isinstance(value, str | int | float | None):
                mistakes.add(line, f"{name} is {value!r}, neither text nor a number")
            elif value is not None and str(value).strip():
                cells[name] = str(value).strip()
        yield Row(line, cells)


def _check_columns(line: int, names: Iterable[str], mistakes: Mistakes) -> None:
    names = list(names)
    for name in names:
        if name not in COLUMNS:
            mistakes.add(line, f"unknown column {name!r}; {suggest(name, list(COLUMNS))}")
    if "file" not in names:
        mistakes.add(line, f"no column file; the columns are {', '.join(names) or 'none'}")


# Rows


def _parse_rows(rows: list[Row], folder: Path, mistakes: Mistakes, *, has_subsets: bool) -> Iterator[ListedVideo]:
    """Yield the videos of the rows that are right as such, and note what is wrong with the others."""
    found = [row for row in rows if _has_file(row, folder, mistakes)]
    names = {row.line: _relative_name(row.cells["file"], folder) for row in found}
    file_ids = make_video_ids(sorted(set(names.values())))
    for row in found:
        cells, path = row.cells, folder / row.cells["file"]
        subset = cells.get("subset", "" if has_subsets else "train")
        if subset not in SUBSETS:
            mistakes.add(row.line, f"subset is {subset!r}; expected one of {', '.join(SUBSETS)}")
        times = _parse_times(row, mistakes)
        if times is None:
            continue
        status, file_id = path.stat(), file_ids[names[row.line]]
        video_id = cells.get("id", file_id + _cut_suffix(*times))
        if (reason := invalid_id_reason(video_id)) is not None and "id" in cells:
            mistakes.add(row.line, f"id {video_id!r} is no relative path: {reason}")
        video = Video(
            path=path,
            video_id=video_id,
            source=cells.get("source", file_id),
            class_name=cells.get("label", ""),
            cut_start=times[0],
            cut_end=times[1],
        )
        yield ListedVideo(row.line, video, subset, (status.st_dev, status.st_ino))


def _has_file(row: Row, folder: Path, mistakes: Mistakes) -> bool:
    if "file" not in row.cells:
        mistakes.add(row.line, "no file")
        return False
    path = folder / row.cells["file"]
    try:
        if path.is_file():
            return True
        reason = "is a folder, not a video file" if path.is_dir() else "does not exist"
    except OSError as error:  # a name that is too long, for example
        reason = f"can't be read: {error.strerror}"
    mistakes.add(row.line, f"{path} {reason}", is_missing_file=reason == "does not exist")
    return False


def _relative_name(file: str, folder: Path) -> Path:
    """Return a path that can be an id: below the list's folder; of files elsewhere, without a leading / or ../"""
    relative = Path(os.path.normpath(file))
    if relative.is_absolute():
        inside = Path(os.path.relpath(relative, folder))
        relative = relative if inside.parts[0] == ".." else inside
    return Path(*[part for part in relative.parts if part not in ("/", "//", "..")])


def _parse_times(row: Row, mistakes: Mistakes) -> tuple[float, float] | None:
    """Return start and end, 0 where there is none; None if they are wrong."""
    values: dict[str, float] = {}
    for name in ("start", "end"):
        text = row.cells.get(name, "0")
        try:
            values[name] = float("nan" if "_" in text else text)
        except ValueError:
            values[name] = math.nan
        if not 0 <= values[name] < math.inf:
            mistakes.add(row.line, f"{name} is {text!r}, not a number of seconds such as 12.5")
            return None
    start, end = values["start"], values["end"]
    if "end" in row.cells and end <= start:
        mistakes.add(row.line, f"the end, {end:.15g} s, is not after the start, {start:.15g} s")
        return None
    return start, end


def _cut_suffix(start: float, end: float) -> str:
    """Return the end of the id of a cut: _12.5-20; nothing for a whole file."""
    if not start and not end:
        return ""
    return f"_{start:.15g}-{end:.15g}" if end else f"_{start:.15g}-end"


# Checks of all rows together


def _check_ids(listed: list[ListedVideo], mistakes: Mistakes) -> None:
    first_line: dict[str, int] = {}
    for one in listed:
        video_id = one.video.video_id
        if (line := first_line.setdefault(video_id, one.line)) != one.line:
            mistakes.add(one.line, f"the id {video_id!r} is that of line {line} too; the column id can give others")


def _check_overlaps(listed: list[ListedVideo], mistakes: Mistakes) -> None:
    """Refuse cuts of a file that have frames in common but different subsets or sources."""
    by_file: dict[tuple[int, int], list[ListedVideo]] = {}
    for one in listed:
        by_file.setdefault(one.file_identity, []).append(one)
    for group in (group for cuts in by_file.values() for group in group_overlapping(cuts)):
        for number, one in enumerate(group):
            for other in group[:number]:
                if cut_times(other)[1] <= one.cut_start:
                    continue
                where = f"it has frames of {one.video.path} in common with line {other.line}"
                if one.subset != other.subset:
                    mistakes.add(one.line, f"{where}, but the subset {one.subset}, not {other.subset}")
                if one.video.source != other.video.source:
                    mistakes.add(one.line, f"{where}, but the source {one.video.source!r}, not {other.video.source!r}")


def _check_lengths(listed: list[ListedVideo], mistakes: Mistakes) -> list[str]:
    """Refuse cuts that start after the end of their file; return a warning of those that end so, by its header."""
    lengths: dict[tuple[int, int], float | None] = {}
    late: list[int] = []
    for one in listed:
        start, end = cut_times(one)
        if (start, end) == (0, math.inf):
            continue
        if one.file_identity not in lengths:
            lengths[one.file_identity] = header_seconds(one.video.path)
        length = lengths[one.file_identity]
        if length is not None and start >= length and not _has_frames(one.video.path, start):
            mistakes.add(one.line, f"the start, {start:.15g} s, is after the end of {one.video.path} ({length:.2f} s)")
        elif length is not None and length < end < math.inf:
            late.append(one.line)
    if not late:
        return []
    return [f"{len(late)} rows end after their video does, and are cut at its end, for example line {late[0]}"]


def _has_frames(path: Path, start: float) -> bool:
    """Look for a frame: the length in a header may be too short, by a few frames in MPEG program streams."""
    try:
        with open_video(path) as video:
            return next(video.frames(start=start), None) is not None
    except ValueError:
        return False
