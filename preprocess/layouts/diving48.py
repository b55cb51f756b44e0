"""Diving48: `<vid_name>.mp4` in one folder, and JSON lists with `vid_name` and `label`.

Lists, below `--splits`: `Diving48_train.json` and `Diving48_test.json` (or `Diving48_V2_...`), and the names of the 48
dives in `Diving48_vocab.json`. A `vid_name` is that of a competition and a number: the competition is the source.
"""

import re
from pathlib import Path

from covid_cmsf.files import read_json
from preprocess.layouts.collection import (
    Collection,
    Video,
    files_by_name,
    find_videos,
    make_video_ids,
    missing_files_warning,
    read_json_rows,
)

NAME = re.compile(r"(?:.*_)?(?P<subset>train|test)\.json$")


def scan_diving48(root: Path, splits: Path | None) -> Collection:
    """Scan Diving48: all listed videos that have a file; labels are those of the lists."""
    if splits is None or not splits.is_dir():
        raise ValueError("layout 'diving48' needs --splits DIR with Diving48_train.json and Diving48_test.json")
    lists = {path: match["subset"] for path in sorted(splits.glob("*.json")) if (match := NAME.match(path.name))}
    if not lists:
        raise ValueError(f"{splits} has no list such as Diving48_train.json")
    if len(set(lists.values())) < len(lists):
        names = ", ".join(path.name for path in lists)
        raise ValueError(f"{splits} has several versions of a list ({names}); keep one of each in a folder")
    vocabulary = _read_vocabulary(splits)
    ids = make_video_ids(find_videos(root))
    by_stem = files_by_name(ids)
    videos: dict[str, Video] = {}
    split: dict[str, str] = {}
    num_listed = 0
    for path, subset in lists.items():
        for row in read_json_rows(path, "vid_name", "label"):
            num_listed += 1
            name, label = str(row["vid_name"]), row["label"]
            if isinstance(label, bool) or not isinstance(label, int) or label < 0:
                raise ValueError(f"{path}: the label of {name!r} is {label!r}, not a number from 0 on")
            if vocabulary and label >= len(vocabulary):
                raise ValueError(f"{path}: {name!r} has the label {label}; the vocabulary has {len(vocabulary)} dives")
            file = by_stem.get(name)
            if file is None:
                continue
            video_id = ids[file]
            if video_id in split:
                raise ValueError(f"{path}: {name!r} is listed twice")
            class_name = vocabulary[label] if vocabulary else f"dive {label}"
            source = name.rpartition("_")[0] or name
            videos[video_id] = Video(root / file, video_id, source, class_name, label)
            split[video_id] = subset
    if not videos:
        raise ValueError(f"no video of {splits} has a file below {root} (looked for <vid_name>.mp4)")
    ordered = [videos[video_id] for video_id in sorted(videos)]
    warnings = missing_files_warning(num_listed, num_listed - len(videos), str(splits))
    return Collection(ordered, {"1": split}, [*warnings, *_shared_sources(ordered, split)])


def _read_vocabulary(splits: Path) -> list[str]:
    """Return the names of the dives, by label; nothing if there is no such file."""
    path = next(iter(sorted(splits.glob("*vocab.json"))), None)
    if path is None:
        return []
    values = read_json(path)
    if not isinstance(values, list) or not all(isinstance(dive, list) for dive in values):
        raise ValueError(f'{path}: expected a list of dives such as ["Back", "15som", "05Twis", "FREE"]')
    return [" ".join(map(str, dive)) for dive in values]


def _shared_sources(videos: list[Video], split: dict[str, str]) -> list[str]:
    subsets: dict[str, set[str]] = {}
    for video in videos:
        subsets.setdefault(video.source, set()).add(split[video.video_id])
    count = sum(len(found) > 1 for found in subsets.values())
    if not count:
        return []
    return [f"the lists have {count} competitions in both train and test; `evaluate` asks for --allow-shared-sources"]
