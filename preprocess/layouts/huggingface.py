"""A folder as Hugging Face `datasets` has it (VideoFolder): videos, in folders that are named after the subsets.

Beside the videos or above them is metadata.jsonl or metadata.csv with the column `file_name`; of its other columns
`id`, `label`, `label_number`, `source` and `subset` are used. Without metadata the folder of a video is its class.
"""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from covid_cmsf.files import read_text
from preprocess.layouts.collection import Collection, find_files, find_videos
from preprocess.layouts.samples import Sample, make_collection, parse_values

METADATA = ("metadata.jsonl", "metadata.csv")
SUBSET_NAMES = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "val"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}


def scan_huggingface(root: Path, *, test_fraction: float | None, seed: int, source_pattern: str | None) -> Collection:
    """Scan the folder; a video without a row of metadata, where there is metadata, is left out with a warning."""
    videos = find_videos(root)
    tables = [path for path in find_files(root, frozenset({".jsonl", ".csv"})) if path.name in METADATA]
    if tables:
        samples = [sample for path in tables for sample in _read_table(root, path)]
    else:
        samples = [_make_sample(root, PurePosixPath(path), {}, None) for path in videos]
    collection = make_collection(
        root,
        samples,
        test_fraction=test_fraction,
        seed=seed,
        source_pattern=source_pattern,
        folders_are_classes=not tables,
    )
    if unlisted := {root / path for path in videos} - {sample.path for sample in samples}:
        collection.warnings.append(
            f"{len(unlisted)} videos below {root} are in no metadata, for example {min(unlisted)}"
        )
    return collection


def _read_table(root: Path, table: Path) -> Iterator[Sample]:
    for line, row in _read_rows(root / table):
        origin = f"{root / table}, line {line}"
        file = row.get("file_name")
        if not isinstance(file, str) or not file:
            raise ValueError(f"{origin}: no file_name")
        relative = PurePosixPath(file)
        if relative.is_absolute() or ".." in relative.parts:
            raise ValueError(f"{origin}: {file!r} leads out of the folder")
        path = PurePosixPath(table).parent / relative
        if not (root / path).is_file():
            raise FileNotFoundError(f"{origin}: {root / path} does not exist")
        number = row.get("label_number")
        if number not in (None, "") and (isinstance(number, bool) or not str(number).isdecimal()):
            raise ValueError(f"{origin}: label_number is {number!r}, not a number from 0 on")
        yield _make_sample(root, path, parse_values(row, origin), None if number in (None, "") else int(str(number)))


def _make_sample(root: Path, path: PurePosixPath, values: dict[str, str], number: int | None) -> Sample:
    """Return the sample of a video: its name does without the subset's folder, and `data/` before it."""
    parts = path.parts[1:] if path.parts[0] == "data" and len(path.parts) > 2 else path.parts
    if len(parts) > 1 and (subset := SUBSET_NAMES.get(parts[0])) is not None:
        values.setdefault("subset", subset)
        parts = parts[1:]
    return Sample(root / path, PurePosixPath(*parts), values, number)


def _read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    text = read_text(path)
    if path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise ValueError(f"{path}, line {reader.line_num}: not CSV: {error}") from None
        return
    for line, one in enumerate(text.split("\n"), start=1):
        if not one.strip():
            continue
        try:
            row = json.loads(one)
        except (json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"{path}, line {line}: not JSON: {error}") from None
        if not isinstance(row, dict):
            raise ValueError(f"{path}, line {line}: {one.strip()[:40]!r} is not an object")
        yield line, row
