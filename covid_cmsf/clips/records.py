"""The files that describe a clip store: store.json, manifest.csv, splits/*.csv, failures.csv.

Tables are CSV with a header in UTF-8; names with quotes, commas or undecodable bytes are preserved. Video ids become
paths below the store: `names` says which are valid, and every table is checked when it is read.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from pydantic import Field

from covid_cmsf.clips.names import check_texts, check_video_ids
from covid_cmsf.config import Config, validate
from covid_cmsf.files import write_text_atomic

FORMAT_VERSION: Literal[1] = 1
KEYFRAME_DISTANCE = 8
StoredModality = Literal["rgb", "flow"]


@dataclass(frozen=True, slots=True)  # slots: a store may have a million records
class ClipRecord:
    """One video of the store: a row of manifest.csv."""

    video_id: str  # "<Class>/<video>", the path of its files below rgb/ and flow/ without ".mp4"
    source: str  # footage that sibling clips share; a UCF group
    class_name: str  # empty when unlabeled
    label: int  # 0-based; -1 when unlabeled
    num_frames: int
    num_flow: int  # num_frames - 1, or 0 in a store without flow
    fps: float
    width: int  # as stored
    height: int
    source_sha256: str  # of the original video file


@dataclass(frozen=True)
class Failure:
    """One video that was skipped: a row of failures.csv."""

    video_id: str
    stage: str  # open, decode, flow, encode, time limit, worker, ...
    reason: str


def read_manifest(path: Path) -> list[ClipRecord]:
    """Return the records in file order; ValueError with the row number if a row is malformed."""
    types = {field.name: field.type for field in fields(ClipRecord)}
    records = []
    for number, row in enumerate(_read_rows(path, types), start=2):
        try:
            values = {key: _convert(types[key], value) for key, value in row.items()}
            records.append(ClipRecord(**values))  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from None
    ids = [record.video_id for record in records]
    check_video_ids(ids, path)
    check_texts((text for record in records for text in (record.source, record.class_name)), path)
    if len(set(ids)) != len(ids):
        duplicate = next(video_id for video_id in ids if ids.count(video_id) > 1)
        raise ValueError(f"{path}: two rows have video_id {duplicate!r}")
    return records


def write_manifest(path: Path, records: Iterable[ClipRecord]) -> None:
    """Write the records sorted by video_id, so that the same videos give the same bytes."""
    ordered = sorted(records, key=lambda record: record.video_id)
    _write_rows(path, [field.name for field in fields(ClipRecord)], map(asdict, ordered))


def read_failures(path: Path) -> list[Failure]:
    """Return the failures; a missing file means none."""
    if not path.exists():
        return []
    failures = [Failure(**row) for row in _read_rows(path, [field.name for field in fields(Failure)])]
    check_video_ids([failure.video_id for failure in failures], path)
    return failures


def write_failures(path: Path, failures: Iterable[Failure]) -> None:
    """Write the failures sorted by video_id."""
    ordered = sorted(failures, key=lambda failure: failure.video_id)
    _write_rows(path, [field.name for field in fields(Failure)], map(asdict, ordered))


def read_split(path: Path) -> dict[str, str]:
    """Return {video_id: subset}, where the subset (column `split`) is train, test or val."""
    split = {row["video_id"]: row["split"] for row in _read_rows(path, ["video_id", "split"])}
    check_video_ids(list(split), path)
    return split


def write_split(path: Path, split: Mapping[str, str]) -> None:
    """Write {video_id: subset} sorted by video_id."""
    rows = ({"video_id": video_id, "split": split[video_id]} for video_id in sorted(split))
    _write_rows(path, ["video_id", "split"], rows)


def _convert(kind: object, value: str) -> str | int | float:
    return int(value) if kind is int else float(value) if kind is float else value


def _read_rows(path: Path, columns: Iterable[str]) -> list[dict[str, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"no table {path}")
    text = path.read_bytes().decode("utf-8", "surrogateescape")
    reader = csv.DictReader(io.StringIO(text, newline=""))
    if set(reader.fieldnames or []) != set(columns):
        raise ValueError(f"{path}: columns are {reader.fieldnames}, expected {list(columns)}")
    rows = []
    for number, row in enumerate(reader, start=2):
        if None in row or None in row.values():
            raise ValueError(f"{path}, row {number}: wrong number of columns")
        rows.append(row)
    return rows


def _write_rows(path: Path, columns: list[str], rows: Iterable[Mapping[str, object]]) -> None:
    text = io.StringIO(newline="")
    # All text is quoted: csv does not quote a lone carriage return in a name, and then can't read it back.
    writer = csv.DictWriter(text, columns, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomic(path, text.getvalue())


# store.json


class FlowInfo(Config):
    """How the flow was computed; `version` lists the software that determines the values."""

    algorithm: str = "tvl1"
    backend: str
    version: str
    parameters: dict[str, float | int]
    bound: float = Field(gt=0)


class StoreInfo(Config):
    """The settings of a store, the same for all of its videos."""

    format: Literal[1] = FORMAT_VERSION
    modalities: tuple[StoredModality, ...]
    short_edge: int = Field(ge=0, description="pixels; 0 = as in the video file")
    max_frames: int = Field(ge=0, description="first frames of each video that are stored; 0 = all")
    quality: int = Field(ge=0, le=51, description="x264 crf of RGB; that of flow is 3 lower")
    keyframe_distance: int = KEYFRAME_DISTANCE
    flow: FlowInfo | None = None
    software: str = Field(default="", description="the version that created the store")


def clip_path(store: Path, modality: str, video_id: str) -> Path:
    """Return the path of a video's file: <store>/<modality>/<Class>/<video>.mp4."""
    return store / modality / f"{video_id}.mp4"


def info_to_json(info: StoreInfo) -> str:
    """Return the text of store.json."""
    return json.dumps(info.model_dump(mode="json"), indent=2) + "\n"


def read_store_info(store: Path) -> StoreInfo:
    """Read and validate store.json; errors say whether the folder or the file is missing or invalid."""
    path = store / "store.json"
    if not store.is_dir():
        raise FileNotFoundError(f"no clip store at {store}: the folder does not exist")
    if not path.is_file():
        raise FileNotFoundError(f"{store} is not a clip store: it has no store.json (see `covid-cmsf preprocess`)")
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT_VERSION:
        found = values.get("format") if isinstance(values, dict) else None
        raise ValueError(f"{path}: unknown format {found!r}; this version reads format {FORMAT_VERSION}")
    return validate(StoreInfo, values, origin=str(path))
