"""HMDB-51: `<class>/<name>.avi` and split files `<class>_test_split<k>.txt` with lines `<name>.avi 0|1|2`.

0 = unused in this split, 1 = train, 2 = test. Names have brackets, quotes and other special characters: they are
compared as strings, never used as patterns (with patterns, seven test videos of split 1 are not found).
"""

import re
from pathlib import Path

from preprocess.layouts.collection import (
    Collection,
    Video,
    find_videos,
    make_labels,
    make_video_ids,
    missing_files_warning,
    read_lines,
)

LIST = re.compile(r"(?P<class>.+)_test_split(?P<number>\d+)\.txt$")
SUBSETS = {"0": None, "1": "train", "2": "test"}


def scan_hmdb51(root: Path, splits: Path | None) -> Collection:
    """Scan HMDB-51; labels follow the sorted class names, the source is the film: the name before `_<class>_`."""
    if splits is None:
        raise ValueError("layout 'hmdb51' needs --splits DIR with its files <class>_test_split1.txt ...")
    ids = {path: video_id for path, video_id in make_video_ids(find_videos(root)).items() if len(path.parts) > 1}
    labels = make_labels(sorted({path.parent.name for path in ids}))
    videos = [
        Video(root / path, video_id, _source_name(path), path.parent.name, labels[path.parent.name])
        for path, video_id in ids.items()
    ]
    by_name = {(video.class_name, video.path.name): video.video_id for video in videos}
    found: dict[str, dict[str, str]] = {}
    num_listed, num_missing = 0, 0
    for path in sorted(splits.iterdir()):
        match = LIST.match(path.name)
        if match is None:
            continue
        for line in read_lines(path):
            name, _, code = line.rstrip().rpartition(" ")
            if code not in SUBSETS:
                raise ValueError(f"{path}: line {line!r} does not end with 0, 1 or 2")
            num_listed += 1
            video_id = by_name.get((match["class"], name.rstrip()))
            num_missing += video_id is None
            subset = SUBSETS[code]
            if video_id is not None and subset is not None:
                found.setdefault(match["number"], {})[video_id] = subset
    if not found:
        raise ValueError(f"{splits} has no <class>_test_split<k>.txt that names a video on disk")
    return Collection(videos, found, missing_files_warning(num_listed, num_missing, str(splits)))


def _source_name(path: Path) -> str:
    film, separator, _ = path.stem.rpartition(f"_{path.parent.name}_")
    return film if separator else path.stem
