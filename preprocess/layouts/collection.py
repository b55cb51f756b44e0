"""The result of scanning a layout, and functions that several layouts share."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from covid_cmsf.clips.names import escape_name
from covid_cmsf.config import suggest
from covid_cmsf.files import read_json
from preprocess.archives import ENDINGS, Member


@dataclass(frozen=True)
class Video:
    """One video file of a collection, or a part of one, or a member of an archive."""

    path: Path
    video_id: str  # "<Class>/<video>"; unique in the collection
    source: str  # footage that sibling clips share
    class_name: str = ""
    label: int = -1
    cut_start: float = 0.0  # seconds; both 0: the whole file
    cut_end: float = 0.0  # 0: the end of the file
    member: Member | None = None  # of the archive at `path`; None: `path` is the video

    def describe(self) -> str:
        """Return the path, and the member of an archive or the times of a cut."""
        if self.member is not None:
            return f"{self.path}: {self.member.name}"
        if not self.cut_start and not self.cut_end:
            return str(self.path)
        end = f"{self.cut_end:g} s" if self.cut_end else "its end"
        return f"{self.path} from {self.cut_start:g} s to {end}"


@dataclass(frozen=True)
class Collection:
    """Videos in a fixed order, the splits {name: {video_id: train|test|val}}, and warnings for the user."""

    videos: list[Video]
    splits: dict[str, dict[str, str]]
    warnings: list[str] = field(default_factory=list)


def escape_names(collection: Collection) -> Collection:
    """Escape control characters and backslashes in ids, sources and class names (`covid_cmsf.clips.names`)."""
    videos = [
        replace(
            video,
            video_id=escape_name(video.video_id),
            source=escape_name(video.source),
            class_name=escape_name(video.class_name),
        )
        for video in collection.videos
    ]
    taken: dict[str, Video] = {}
    for video in videos:
        other = taken.setdefault(video.video_id, video)
        if (other.path, other.member) != (video.path, video.member):
            raise ValueError(
                f"{video.describe()} and {other.describe()} would both have the id {video.video_id!r}; rename one "
                "of them"
            )
    splits = {
        name: {escape_name(key): subset for key, subset in one.items()} for name, one in collection.splits.items()
    }
    return replace(collection, videos=videos, splits=splits)


def select_classes(collection: Collection, names: list[str]) -> Collection:
    """Return the videos of the named classes, labeled from 0 in the order of their labels; ValueError for others."""
    known = {video.class_name: video.label for video in collection.videos if video.class_name}
    if not known:
        raise ValueError("these videos have no classes to choose from; leave --classes out")
    wanted = {escape_name(name.strip()) for name in names if name.strip()}
    for name in sorted(wanted - set(known)):
        raise ValueError(f"--classes: no video is of class {name!r}; {suggest(name, sorted(known))}")
    if not wanted:
        raise ValueError("--classes names no class; for example --classes Archery,Diving")
    labels = make_labels(sorted(wanted, key=lambda name: known[name]))
    videos = [
        replace(video, label=labels[video.class_name]) for video in collection.videos if video.class_name in labels
    ]
    ids = {video.video_id for video in videos}
    splits = {
        name: {key: subset for key, subset in one.items() if key in ids} for name, one in collection.splits.items()
    }
    return replace(collection, videos=videos, splits=splits)


def make_labels(class_names: list[str]) -> dict[str, int]:
    """Return {class: 0-based label} in the given order; ValueError if a name is repeated."""
    if len(set(class_names)) != len(class_names):
        duplicate = next(name for name in class_names if class_names.count(name) > 1)
        raise ValueError(f"class {duplicate!r} is twice in the class list")
    return {name: label for label, name in enumerate(class_names)}


def read_lines(path: Path) -> list[str]:
    """Return the non-empty lines, without LF or CRLF; undecodable bytes in names are preserved."""
    text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    return [line.strip("\r") for line in text.split("\n") if line.strip()]


def read_json_rows(path: Path, *keys: str) -> list[dict[str, Any]]:
    """Return a JSON list of objects; ValueError with its number for one that lacks a key."""
    rows = read_json(path)
    if not isinstance(rows, list):
        raise ValueError(f"{path} is not a list of objects with {', '.join(keys)}")
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict) or not all(row.get(key) not in (None, "") for key in keys):
            raise ValueError(f"{path}: entry {number} is {str(row)[:60]}; it needs {', '.join(keys)}")
    return rows


def missing_files_warning(num_listed: int, num_missing: int, where: str) -> list[str]:
    """Return a warning if listed videos are not on disk, else nothing."""
    return [f"{num_missing} of the {num_listed} videos listed in {where} are not on disk"] if num_missing else []


def select_shard(videos: list[Video], shard: str | None) -> list[Video]:
    """Return every n-th video from the i-th on, for `i/n` with i from 1 to n; all of them for None."""
    if shard is None:
        return videos
    left, slash, right = shard.partition("/")
    if not slash or not left.isdigit() or not right.isdigit() or not 1 <= int(left) <= int(right):
        raise ValueError(f"--shard {shard!r} is not of the form i/n with 1 <= i <= n, for example 2/8")
    return videos[int(left) - 1 :: int(right)]


EXTENSIONS = frozenset(
    f".{ending}" for ending in "3gp asf avi flv m2ts m4v mkv mov mp4 mpeg mpg mts ogv ts vob webm wmv y4m".split()
)


def find_videos(root: Path) -> list[Path]:
    """Return the sorted paths of the video files below `root`, relative to it; links are followed, cycles ignored."""
    found = find_files(root, EXTENSIONS)
    if not found:
        archives = "; `covid-cmsf preprocess --layout archive` reads its archives" if find_files(root, ENDINGS) else ""
        raise ValueError(f"no video files below {root} (looked for {' '.join(sorted(EXTENSIONS))}){archives}")
    return found


def find_files(root: Path, endings: frozenset[str]) -> list[Path]:
    """Return the sorted paths of files with these endings below `root`, as `find_videos` does; perhaps none."""
    if not root.is_dir():
        raise FileNotFoundError(f"no folder of videos at {root}")
    return [path.relative_to(root) for path in sorted(_walk(root, root.stat(), set(), endings))]


def _walk(folder: Path, status: os.stat_result, seen: set[tuple[int, int]], endings: frozenset[str]) -> Iterator[Path]:
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return
    seen.add(identity)
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if _is_dir(entry):
                yield from _walk(Path(entry.path), entry.stat(), seen, endings)
            elif Path(entry.name).suffix.lower() in endings:
                yield Path(entry.path)


def _is_dir(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself: if it is named like a video, it becomes one that can't be opened
        return False


def make_video_ids(paths: list[Path]) -> dict[Path, str]:
    """Return {relative path: video id}: the path without suffix, or with it if two files differ only in the suffix."""
    stems = [path.with_suffix("").as_posix() for path in paths]
    counts: dict[str, int] = {}
    for stem in stems:
        counts[stem] = counts.get(stem, 0) + 1
    ids = {path: stem if counts[stem] == 1 else path.as_posix() for path, stem in zip(paths, stems, strict=True)}
    taken: dict[str, Path] = {}
    for path, video_id in ids.items():
        if taken.setdefault(video_id, path) != path:
            raise ValueError(f"{path} and {taken[video_id]} would both have the id {video_id!r}; rename one of them")
    return ids


def files_by_name(paths: Iterable[Path]) -> dict[str, Path]:
    """Return {name without folder and suffix: path}; two files of one name are refused."""
    found: dict[str, Path] = {}
    for path in paths:
        if found.setdefault(path.stem, path) != path:
            raise ValueError(
                f"{path} and {found[path.stem]} have the same name, by which the list finds its videos; "
                "remove or rename one of them"
            )
    return found
