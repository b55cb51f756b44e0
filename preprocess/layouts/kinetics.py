"""Kinetics: CSV lists with `label,youtube_id,time_start,time_end[,split]`; files named by YouTube id.

Files are found by name anywhere below the folder: `<id>_<start>_<end>.mp4` (six digits each) or `<id>.mp4`. Many
published videos no longer exist, so rows without a file are counted in a warning.
"""

from pathlib import Path
from typing import Any

from covid_cmsf.files import read_csv
from preprocess.layouts.collection import (
    Collection,
    Video,
    find_videos,
    make_labels,
    make_video_ids,
    missing_files_warning,
)

SUBSETS = {"train": "train", "training": "train", "val": "val", "validate": "val", "validation": "val", "test": "test"}


def scan_kinetics(root: Path, splits: Path | None) -> Collection:
    """Scan Kinetics: all rows that have a file; the source is the YouTube id."""
    if splits is None:
        raise ValueError("layout 'kinetics' needs --splits FILE.csv or a folder with train.csv, val.csv ...")
    lists = sorted(splits.glob("*.csv")) if splits.is_dir() else [splits]
    if not lists:
        raise ValueError(f"{splits} has no .csv list")
    rows = [row for path in lists for row in _read_rows(path)]
    labels = make_labels(sorted({row["label"] for row in rows if row["label"]}))
    ids = make_video_ids(find_videos(root))
    by_stem: dict[str, list[Path]] = {}
    for path in ids:
        by_stem.setdefault(path.stem, []).append(path)
    videos: dict[str, Video] = {}
    split: dict[str, str] = {}
    num_missing = 0
    for row in rows:
        file = _find_file(row, by_stem)
        if file is None:
            num_missing += 1
            continue
        video_id, class_name = ids[file], row["label"]
        if video_id in split:
            raise ValueError(f"two rows of {splits} have the same file {file}")
        label = labels.get(class_name, -1)
        videos[video_id] = Video(root / file, video_id, row["youtube_id"], class_name, label)
        split[video_id] = row["split"]
    if not videos:
        raise ValueError(f"no row of {splits} has a file below {root} (looked for <youtube_id>_<start>_<end>.*)")
    ordered = [videos[video_id] for video_id in sorted(videos)]
    return Collection(ordered, {"1": split}, missing_files_warning(len(rows), num_missing, str(splits)))


def _read_rows(path: Path) -> list[dict[str, str]]:
    rows: list[dict[Any, str]] = read_csv(path)[1]
    for number, row in enumerate(rows, start=2):
        if not row.get("youtube_id"):
            raise ValueError(f"{path}, row {number}: no youtube_id; columns are {', '.join(map(str, row))}")
        subset = row.get("split") or path.stem.rsplit("_", 1)[-1]
        if subset not in SUBSETS:
            raise ValueError(f"{path}, row {number}: split {subset!r}; expected one of {', '.join(SUBSETS)}")
        for column in ("time_start", "time_end"):
            if row.get(column) and not row[column].replace(".", "", 1).isdigit():
                raise ValueError(f"{path}, row {number}: {column} is {row[column]!r}, not a number of seconds")
        row["split"], row["label"] = SUBSETS[subset], row.get("label") or ""
    return rows


def _find_file(row: dict[str, str], by_stem: dict[str, list[Path]]) -> Path | None:
    """Return the row's file; if several folders have it, the one in a folder named after its class."""
    names = [row["youtube_id"]]
    if row.get("time_start") and row.get("time_end"):
        names.insert(0, f"{row['youtube_id']}_{float(row['time_start']):06.0f}_{float(row['time_end']):06.0f}")
    for name in names:
        paths = by_stem.get(name, [])
        in_class = [path for path in paths if path.parent.name == row["label"]]
        if in_class or paths:
            return (in_class or paths)[0]
    return None
