"""The videos of a project: which files there are, how long they are, and labels where there are some.

Labels never reach the clip store, and so never the training: they are added to features, for measures and search.
"""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import av
import numpy as np

from covid_cmsf.clips.containers import open_container, stream_fps
from covid_cmsf.clips.cuts import cut_times
from covid_cmsf.clips.names import escape_name
from covid_cmsf.clips.records import ClipRecord, get_column
from covid_cmsf.files import read_csv
from covid_cmsf.projects.sizes import BASE_FPS, MIN_VIDEOS, Footage
from preprocess.layouts import Collection, Video, scan_collection
from preprocess.layouts.video_list import is_video_list

LAYOUTS = ("flat", "folder")
NUM_PROBED = 48
COLUMNS = ("file", "label", "source")


@dataclass(frozen=True)
class FoundVideos:
    """The videos of a folder, and {id: class} of those that have a label."""

    collection: Collection
    labels: dict[str, str]

    @property
    def videos(self) -> list[Video]:
        """All videos, without labels."""
        return self.collection.videos


def scan_videos(
    folder: Path, *, layout: str = "flat", source_pattern: str | None = None, labels: Path | None = None
) -> FoundVideos:
    """Return the videos of a folder or list, all of them to train on, and their labels apart.

    Args:
        folder: where the videos are, also in subfolders; or a list of files, CSV or JSONL, as `preprocess` takes it.
        layout: flat, or folder: the first folder below is the class.
        source_pattern: a regular expression on the path whose first group is the source.
        labels: a CSV file with the columns file, label and, optionally, source.
    """
    if layout not in LAYOUTS:
        raise ValueError(f"unknown layout {layout!r}; choose from {', '.join(LAYOUTS)}")
    if is_video_list(folder):
        if layout != "flat" or source_pattern is not None or labels is not None:
            raise ValueError(
                f"{folder} is a list: its columns label and source say what --layout, --labels and --source-pattern "
                "say of a folder; leave these out"
            )
        return _scan_list(folder)
    collection = scan_collection("flat", folder, source_pattern=source_pattern)
    if labels is not None:
        return add_labels(collection, folder, labels)
    classes = {video.video_id: _relative(video, folder).parts[:-1] for video in collection.videos}
    if layout == "flat":
        classes = {}
    if outside := [name for name, parts in classes.items() if not parts]:
        raise ValueError(f"{folder / outside[0]} is in no class folder; leave --layout folder out for unlabeled videos")
    return FoundVideos(collection, {name: escape_name(parts[0]) for name, parts in classes.items()})


def _scan_list(path: Path) -> FoundVideos:
    collection = scan_collection("list", path)
    subsets = collection.splits["1"]
    if held_out := [name for name, subset in subsets.items() if subset != "train"]:
        raise ValueError(
            f"{path} keeps {len(held_out)} videos for {subsets[held_out[0]]}, for example {held_out[0]!r}; "
            "`learn` trains on all listed videos: take these rows and the column subset out"
        )
    labels = {video.video_id: video.class_name for video in collection.videos if video.class_name}
    videos = [replace(video, class_name="", label=-1) for video in collection.videos]
    return FoundVideos(replace(collection, videos=videos), labels)


def _relative(video: Video, folder: Path) -> Path:
    return Path(os.path.relpath(video.path, folder))


def check_count(count: int, folder: Path, *, what: str = "videos") -> None:
    """Raise ValueError if there are too few videos to learn from."""
    if count < MIN_VIDEOS:
        raise ValueError(
            f"{folder} has {count} {what}, and learning from videos alone needs at least {MIN_VIDEOS} (hundreds are "
            "better): add videos, cut long ones into scenes, or search with weights that were trained elsewhere: "
            f"`covid-cmsf search index {folder} --weights WEIGHTS --out INDEX`"
        )


def add_labels(collection: Collection, folder: Path, path: Path) -> FoundVideos:
    """Read labels, and sources where there are some, from a CSV file; videos that it does not list have no label.

    The column `file` has paths relative to the folder, with or without suffix.
    """
    rows = _read_labels(path)
    by_name: dict[str, str] = {}
    for video in collection.videos:
        relative = _relative(video, folder)
        by_name[relative.as_posix()] = by_name[relative.with_suffix("").as_posix()] = video.video_id
    unknown = [name for name in rows if name not in by_name]
    if unknown:
        raise ValueError(f"{path} lists {len(unknown)} files that are not in {folder}, for example {unknown[0]!r}")
    sources = {by_name[name]: escape_name(source) for name, (_, source) in rows.items() if source}
    videos = [replace(video, source=sources.get(video.video_id, video.source)) for video in collection.videos]
    labels = {by_name[name]: escape_name(label) for name, (label, _) in rows.items() if label}
    return FoundVideos(replace(collection, videos=videos), labels)


def _read_labels(path: Path) -> dict[str, tuple[str, str]]:
    """Return {file: (label, source)}."""
    names, listed = read_csv(path)
    if not {"file", "label"} <= set(names) <= set(COLUMNS):
        raise ValueError(
            f"{path}: the columns are {', '.join(names) or 'none'}; expected file,label or file,label,source"
        )
    rows: dict[str, tuple[str, str]] = {}
    for number, row in enumerate(listed, start=2):
        if not row["file"] or None in row or row["label"] is None:
            raise ValueError(f"{path}, row {number}: {row} is not file,label[,source]")
        if row["file"] in rows:
            raise ValueError(f"{path}, row {number}: {row['file']!r} is listed twice")
        rows[row["file"]] = (row["label"].strip(), (row.get("source") or "").strip())
    return rows


# Lengths


def probe_footage(videos: Sequence[Video], *, short_edge: int) -> Footage:
    """Return number and lengths of the videos as the headers of some of them say; unreadable ones are left out.

    The number is that of the files: how many can be read is known when they were decoded.
    """
    step = max(1, len(videos) // NUM_PROBED)
    probed = [found for video in videos[::step] if (found := _probe(video)) is not None]
    if not probed:
        raise ValueError(f"none of {len(videos[::step])} sampled videos can be read, for example {videos[0].path}")
    frames, rates, aspects = (np.array(column) for column in zip(*probed, strict=True))
    pixels = short_edge * short_edge * float(np.median(aspects))
    return _footage(len(videos), frames, rates, 3 * pixels)


def _probe(video: Video) -> tuple[int, float, float] | None:
    """Return number of frames, frames per second, and the long edge over the short one; None if it can't be read."""
    start, end = cut_times(video)
    try:
        with open_container(video.path) as container:
            stream = container.streams.video[0]
            fps = float(stream_fps(stream))
            seconds = (container.duration or 0) / av.time_base
            frames = int(stream.frames) or round(seconds * fps)
            frames = round(min(frames, end * fps) - start * fps)
            edges = sorted((stream.codec_context.width, stream.codec_context.height))
    except (av.error.FFmpegError, OSError, IndexError, AttributeError):
        return None
    return (frames, fps, edges[1] / edges[0]) if frames > 0 and edges[0] > 0 else None


def store_footage(records: Sequence[ClipRecord]) -> Footage:
    """Return number and lengths of the videos of a clip store."""
    frames, fps, width, height = (
        np.array(get_column(records, name)) for name in ("num_frames", "fps", "width", "height")
    )
    return _footage(len(records), frames, fps, 3 * float(np.median(width * height)))


def _footage(num_videos: int, frames: np.ndarray, fps: np.ndarray, frame_bytes: float) -> Footage:
    return Footage(
        num_videos=num_videos,
        short_frames=int(np.percentile(frames, 10)),
        median_frames=int(np.median(frames)),
        fps=float(np.median(fps)) or BASE_FPS,
        frame_bytes=round(frame_bytes),
    )


def present_ids(videos: Iterable[Video], records: Sequence[ClipRecord]) -> list[str]:
    """Return the ids of the videos that are in the folder and in the store."""
    stored = set(get_column(records, "video_id"))
    return sorted(video.video_id for video in videos if video.video_id in stored)
