"""The tables of a clip store: manifest.csv, splits/*.csv, failures.csv.

Plain CSV with a header, UTF-8; file names with quotes, commas, newlines or undecodable bytes survive.
"""

import csv
import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Literal

from pydantic import Field

from covid_cmsf.config import Config, validate
from covid_cmsf.files import write_text_atomic


@dataclass(frozen=True, slots=True)  # there may be a million of them
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
    source_sha256: str  # of the video file that it was made from


@dataclass(frozen=True)
class Failure:
    """One video that was set aside: a row of failures.csv."""

    video_id: str
    stage: str  # open, decode, flow, encode, time limit, worker, ...
    reason: str


def read_manifest(path: Path) -> list[ClipRecord]:
    """The records in file order; ValueError names the row that is wrong."""
    types = {field.name: field.type for field in fields(ClipRecord)}
    records = []
    for number, row in enumerate(_read_rows(path, types), start=2):
        try:
            values = {key: _convert(types[key], value) for key, value in row.items()}
            records.append(ClipRecord(**values))  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{path}, row {number}: {error}") from None
    ids = [record.video_id for record in records]
    if len(set(ids)) != len(ids):
        duplicate = next(video_id for video_id in ids if ids.count(video_id) > 1)
        raise ValueError(f"{path}: video_id {duplicate!r} stands twice")
    return records


def write_manifest(path: Path, records: Iterable[ClipRecord]) -> None:
    """Writes the records sorted by video_id, so that the same videos give the same bytes."""
    ordered = sorted(records, key=lambda record: record.video_id)
    _write_rows(path, [field.name for field in fields(ClipRecord)], map(asdict, ordered))


def read_failures(path: Path) -> list[Failure]:
    """The failures; an absent file means none."""
    if not path.exists():
        return []
    return [Failure(**row) for row in _read_rows(path, [field.name for field in fields(Failure)])]


def write_failures(path: Path, failures: Iterable[Failure]) -> None:
    """Writes the failures sorted by video_id."""
    ordered = sorted(failures, key=lambda failure: failure.video_id)
    _write_rows(path, [field.name for field in fields(Failure)], map(asdict, ordered))


def read_split(path: Path) -> dict[str, str]:
    """{video_id: split}, where split is train, test or val."""
    return {row["video_id"]: row["split"] for row in _read_rows(path, ["video_id", "split"])}


def write_split(path: Path, split: Mapping[str, str]) -> None:
    """Writes {video_id: split} sorted by video_id."""
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
    # All text is quoted: csv would leave a lone carriage return in a name bare, and then not read it back.
    writer = csv.DictWriter(text, columns, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomic(path, text.getvalue())


# store.json: how the files of a clip store were made, and the rule for where they stand.

FORMAT_VERSION: Literal[1] = 1
KEYFRAME_DISTANCE = 8
StoredModality = Literal["rgb", "flow"]


class FlowInfo(Config):
    """The flow's algorithm; `version` names the software that decides the values."""

    algorithm: str = "tvl1"
    backend: str
    version: str
    parameters: dict[str, float | int]
    bound: float = Field(gt=0)


class StoreInfo(Config):
    """What must be the same for all videos of a store."""

    format: Literal[1] = FORMAT_VERSION
    modalities: tuple[StoredModality, ...]
    short_edge: int = Field(ge=0, description="pixels; 0 = as the source")
    max_frames: int = Field(ge=0, description="frames taken from each video; 0 = all")
    quality: int = Field(ge=0, le=51, description="x264 crf of RGB; flow is stored 3 steps finer")
    keyframe_distance: int = KEYFRAME_DISTANCE
    flow: FlowInfo | None = None
    software: str = Field(default="", description="the version that created the store")


def clip_path(store: Path, modality: str, video_id: str) -> Path:
    """Where a video's file stands: <store>/<modality>/<Class>/<video>.mp4."""
    return store / modality / f"{video_id}.mp4"


def info_to_json(info: StoreInfo) -> str:
    """The text of store.json."""
    return json.dumps(info.model_dump(mode="json"), indent=2) + "\n"


def read_store_info(store: Path) -> StoreInfo:
    """The store's settings; errors say whether the folder or the file is wrong."""
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
        raise ValueError(f"{path}: format {found!r} is not the format {FORMAT_VERSION} that this version reads")
    return validate(StoreInfo, values, origin=str(path))
