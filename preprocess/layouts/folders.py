"""A user's own videos: class folders (`folder`) or just files (`flat`)."""

import hashlib
import re
from pathlib import Path

from preprocess.layouts.collection import Collection, Video, find_videos, make_labels, make_video_ids

OWN_SOURCE_WARNING = (
    "every video is taken as footage of its own; if several were cut from one film or recording, clips of it may be in "
    "both train and test: name the footage with --source-pattern, for example '(movie\\d+)_'"
)


def scan_folder(root: Path, *, test_fraction: float, seed: int, source_pattern: str | None) -> Collection:
    """Scan class folders: the first folder below `root` is the class. The split is random, by source, per class."""
    ids = make_video_ids(find_videos(root))
    unclassified = [path for path in ids if len(path.parts) == 1]
    if unclassified:
        raise ValueError(f"{root / unclassified[0]} is in no class folder; use the layout `flat` for unlabeled videos")
    labels = make_labels(sorted({path.parts[0] for path in ids}))
    videos = [
        Video(root / path, video_id, source_name(path, video_id, source_pattern), path.parts[0], labels[path.parts[0]])
        for path, video_id in ids.items()
    ]
    split = split_by_source(videos, test_fraction, seed)
    own_source = source_pattern is None and test_fraction > 0
    return Collection(videos, {"1": split}, [OWN_SOURCE_WARNING] if own_source else [])


def scan_flat(root: Path, *, source_pattern: str | None) -> Collection:
    """Scan unlabeled videos in any folders: label -1, all in the training subset."""
    ids = make_video_ids(find_videos(root))
    videos = [
        Video(root / path, video_id, source_name(path, video_id, source_pattern)) for path, video_id in ids.items()
    ]
    return Collection(videos, {"1": {video.video_id: "train" for video in videos}})


def source_name(path: Path, video_id: str, pattern: str | None) -> str:
    """Return the pattern's first group (or whole match) in the path; without a pattern, the video id."""
    if pattern is None:
        return video_id
    try:
        match = re.search(pattern, path.as_posix())
    except re.error as error:
        raise ValueError(f"--source-pattern {pattern!r} is not a regular expression: {error}") from None
    found = None if match is None else match[1] if match.re.groups else match[0]
    if found is None:
        raise ValueError(f"--source-pattern {pattern!r} matches nothing in {path.as_posix()!r}")
    return found


def split_by_source(videos: list[Video], test_fraction: float, seed: int) -> dict[str, str]:
    """Return {video id: train or test}, drawn at random; videos of one source are in the same subset."""
    if not 0 <= test_fraction < 1:
        raise ValueError(f"the test fraction must be at least 0 and below 1, not {test_fraction}")
    test = _choose_test_sources(videos, test_fraction, seed)
    return {video.video_id: "test" if video.source in test else "train" for video in videos}


def _choose_test_sources(videos: list[Video], fraction: float, seed: int) -> set[str]:
    """Draw the sources of the test subset, per class; a source in several classes counts for its first one."""
    first_class: dict[str, str] = {}
    for video in videos:
        first_class.setdefault(video.source, video.class_name)
    test: set[str] = set()
    for class_name in set(first_class.values()):
        sources = [source for source, name in first_class.items() if name == class_name]
        sources.sort(key=lambda source: hashlib.sha256(f"{seed}\0{source}".encode("utf-8", "surrogateescape")).digest())
        num_test = round(fraction * len(sources))
        if fraction > 0 and len(sources) > 1:
            num_test = min(max(num_test, 1), len(sources) - 1)  # both subsets have every class with two sources
        test.update(sources[:num_test])
    return test
