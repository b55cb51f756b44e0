"""Something-Something v2: `<id>.webm` in one folder, and JSON lists of ids with the template of their sentence.

Lists, below `--splits`: `something-something-v2-train.json`, `-validation.json`, `-test.json` and `-labels.json`, or
the same names without the front (`train.json`). The class is the template without its brackets, as in `labels.json`;
the test list has no labels. The lists do not say who is in a video, so every video is a source of its own.
"""

import re
from pathlib import Path
from typing import Any

from covid_cmsf.files import read_json
from preprocess.layouts.collection import (
    Collection,
    Video,
    files_by_name,
    find_videos,
    make_labels,
    make_video_ids,
    missing_files_warning,
    read_json_rows,
)

NAME = re.compile(r"(?:.*[-_])?(?P<kind>train|validation|val|test|labels)\.json$")
SUBSETS = {"train": "train", "validation": "val", "val": "val", "test": "test"}


def scan_something_something(root: Path, splits: Path | None) -> Collection:
    """Scan Something-Something v2: all listed ids that have a file; labels are the numbers of `labels.json`."""
    if splits is None or not splits.is_dir():
        raise ValueError("layout 'ssv2' needs --splits DIR with its lists train.json, validation.json and labels.json")
    lists = {path: match["kind"] for path in sorted(splits.glob("*.json")) if (match := NAME.match(path.name))}
    rows = [(path, SUBSETS[kind], row) for path, kind in lists.items() if kind != "labels" for row in _read(path)]
    if not rows:
        raise ValueError(f"{splits} has no list such as train.json or something-something-v2-train.json")
    names = {_class_name(row) for _, _, row in rows} - {""}
    labels = _read_labels([path for path, kind in lists.items() if kind == "labels"], names)
    ids = make_video_ids(find_videos(root))
    by_stem = files_by_name(ids)
    videos: dict[str, Video] = {}
    split: dict[str, str] = {}
    for path, subset, row in rows:
        file = by_stem.get(row["id"])
        if file is None:
            continue
        video_id, class_name = ids[file], _class_name(row)
        if video_id in split:
            raise ValueError(f"{path}: the id {row['id']!r} is listed twice")
        videos[video_id] = Video(root / file, video_id, video_id, class_name, labels.get(class_name, -1))
        split[video_id] = subset
    if not videos:
        raise ValueError(f"no id of {splits} has a file below {root} (looked for <id>.webm)")
    ordered = [videos[video_id] for video_id in sorted(videos)]
    num_missing = len(rows) - len(videos)
    return Collection(ordered, {"1": split}, missing_files_warning(len(rows), num_missing, str(splits)))


def _read(path: Path) -> list[dict[str, Any]]:
    rows = read_json_rows(path, "id")
    return [{**row, "id": str(row["id"])} for row in rows]


def _class_name(row: dict[str, Any]) -> str:
    """Return the template without brackets: `Holding something next to something`; empty if there is none."""
    return str(row.get("template") or "").replace("[", "").replace("]", "")


def _read_labels(paths: list[Path], names: set[str]) -> dict[str, int]:
    """Return {class: label} of labels.json, else by the sorted names."""
    if not paths:
        return make_labels(sorted(names))
    values = read_json(paths[0])
    if not isinstance(values, dict) or not all(str(number).isdigit() for number in values.values()):
        raise ValueError(f'{paths[0]}: expected an object like {{"Holding something": "0"}}')
    labels = {name: int(number) for name, number in values.items()}
    if unknown := sorted(names - labels.keys()):
        raise ValueError(f"{paths[0]} has no class {unknown[0]!r}, which a list names")
    return labels
