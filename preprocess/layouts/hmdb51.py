"""HMDB-51: `<class>/<name>.avi` and split files `<class>_test_split<k>.txt` with lines `<name>.avi 0|1|2`.

0 = unused in this split, 1 = train, 2 = test. Names hold brackets, quotes and other odd characters: they are only
ever compared as strings, never used as patterns (with patterns, seven test videos of split 1 vanish).
"""

import re
from pathlib import Path

from preprocess.layouts.collection import Collection, Video, labels_of, missing_remark, text_lines
from preprocess.scan import find_videos, video_ids

LIST = re.compile(r"(?P<class>.+)_test_split(?P<number>\d+)\.txt$")
PARTS = {"0": None, "1": "train", "2": "test"}


def scan_hmdb51(root: Path, splits: Path | None) -> Collection:
    """The collection; labels follow the sorted class names; the source is the film, the name before `_<class>_`."""
    if splits is None:
        raise ValueError("layout 'hmdb51' needs --splits DIR with its files <class>_test_split1.txt ...")
    ids = {path: video_id for path, video_id in video_ids(find_videos(root)).items() if len(path.parts) > 1}
    labels = labels_of(sorted({path.parent.name for path in ids}))
    videos = [
        Video(root / path, video_id, _source(path), path.parent.name, labels[path.parent.name])
        for path, video_id in ids.items()
    ]
    by_name = {(video.class_name, video.path.name): video.video_id for video in videos}
    found: dict[str, dict[str, str]] = {}
    listed, missing = 0, 0
    for path in sorted(splits.iterdir()):
        match = LIST.match(path.name)
        if match is None:
            continue
        for line in text_lines(path):
            name, _, code = line.rstrip().rpartition(" ")
            if code not in PARTS:
                raise ValueError(f"{path}: line {line!r} does not end with 0, 1 or 2")
            listed += 1
            video_id = by_name.get((match["class"], name.rstrip()))
            missing += video_id is None
            part = PARTS[code]
            if video_id is not None and part is not None:
                found.setdefault(match["number"], {})[video_id] = part
    if not found:
        raise ValueError(f"{splits} has no <class>_test_split<k>.txt that names a video on disk")
    return Collection(videos, found, missing_remark(listed, missing, str(splits)))


def _source(path: Path) -> str:
    film, cut, _ = path.stem.rpartition(f"_{path.parent.name}_")
    return film if cut else path.stem
