"""UCF-101: `<Class>/v_<Class>_gNN_cMM.avi`, three official splits by group.

The published lists have groups 1-7 of every class in the test subset of split 1, 8-14 in that of split 2 and 15-21 in
that of split 3, so without `--splits` the same splits are made from the names.
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

NAME = re.compile(r"v_(?P<class>.+)_g(?P<group>\d+)_c\d+$")
TEST_GROUPS = {"1": range(1, 8), "2": range(8, 15), "3": range(15, 22)}


def scan_ucf101(root: Path, splits: Path | None) -> Collection:
    """Scan UCF-101; labels follow classInd.txt if it exists, else the case-insensitive order of the class names."""
    ids = make_video_ids([path for path in find_videos(root) if NAME.match(path.stem)])
    if not ids:
        raise ValueError(f"no file below {root} is named v_<Class>_gNN_cMM, as the layout ucf101 needs; try `folder`")
    labels = _labels(splits, sorted({path.parent.name for path in ids}, key=lambda name: (name.lower(), name)))
    videos = []
    for path, video_id in ids.items():
        class_name = path.parent.name
        if class_name not in labels:
            raise ValueError(f"class {class_name!r} of {path} is not in {splits}/classInd.txt")
        source = path.stem.rsplit("_", 1)[0]  # v_<Class>_gNN
        videos.append(Video(root / path, video_id, source, class_name, labels[class_name]))
    if splits is None:
        return Collection(videos, {name: _split_by_group(videos, groups) for name, groups in TEST_GROUPS.items()})
    collection = _split_by_lists(videos, splits)
    if not (splits / "classInd.txt").is_file():
        collection.warnings.append(f"{splits} has no classInd.txt: labels follow the folder names (case-insensitive)")
    return collection


def _labels(splits: Path | None, folders: list[str]) -> dict[str, int]:
    path = splits / "classInd.txt" if splits is not None else None
    if path is None or not path.is_file():
        return make_labels(folders)
    pairs = [line.split() for line in read_lines(path)]
    if any(len(pair) != 2 or not pair[0].isdigit() for pair in pairs):
        raise ValueError(f"{path}: every line must be a number and a class, as in `1 ApplyEyeMakeup`")
    return make_labels([name for _, name in sorted(pairs, key=lambda pair: int(pair[0]))])


def _split_by_group(videos: list[Video], test_groups: range) -> dict[str, str]:
    split = {}
    for video in videos:
        match = NAME.match(video.path.stem)
        assert match is not None
        split[video.video_id] = "test" if int(match["group"]) in test_groups else "train"
    return split


def _split_by_lists(videos: list[Video], splits: Path) -> Collection:
    by_name = {f"{video.class_name}/{video.path.name}": video.video_id for video in videos}
    found: dict[str, dict[str, str]] = {}
    num_listed, num_missing = 0, 0
    for path in sorted(p for subset in ("train", "test") for p in splits.glob(f"{subset}list[0-9][0-9].txt")):
        subset, number = path.stem[:-6], str(int(path.stem[-2:]))
        for line in read_lines(path):
            name = re.sub(r"\s+\d+$", "", line).strip()
            num_listed += 1
            if name in by_name:
                found.setdefault(number, {})[by_name[name]] = subset
            else:
                num_missing += 1
    if not found:
        raise ValueError(f"{splits} has no trainlistNN.txt/testlistNN.txt that names a video on disk")
    return Collection(videos, found, missing_files_warning(num_listed, num_missing, str(splits)))
