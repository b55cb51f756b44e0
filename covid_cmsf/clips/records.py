"""The files that describe a clip store: store.json, manifest.csv, splits/*.csv, failures.csv.

Tables are CSV with a header in UTF-8; names with quotes, commas or undecodable bytes are preserved. Video ids become
paths below the store: `names` says which are valid, and every table is checked when it is read. Text that a spreadsheet
would take for a formula has a ' in front, which is taken off when it is read.
"""

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from operator import attrgetter, lt
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from covid_cmsf.clips.audio_info import AudioInfo
from covid_cmsf.clips.columns import ColumnBuilder, ColumnTable, encode_text
from covid_cmsf.clips.flow_codec import FlowLevels, motion_bound, size_bound
from covid_cmsf.clips.names import are_valid, are_valid_paths, check_texts, check_video_ids
from covid_cmsf.clips.plain_csv import (
    cut_cells,
    is_printable,
    join_cells,
    parse_floats,
    parse_integers,
    read_blocks,
    split_plain,
)
from covid_cmsf.clips.row_counts import count_error, recorded_count
from covid_cmsf.clips.tables import open_table, parse_block, read_columns, write_rows
from covid_cmsf.config import Config, validate
from covid_cmsf.files import read_json

FORMAT_VERSION: Literal[2] = 2
KEYFRAME_DISTANCE = 8
StoredModality = Literal["rgb", "flow", "motion", "audio"]
MOTION_VECTORS = "motion-vectors"  # the algorithm of the stored modality `motion`
FLOW_MODALITIES = ("flow", "motion")  # frame i is the motion from frame i to i + 1, x above y (see `flow_codec`)


@dataclass(frozen=True, slots=True)  # slots: a store may have a million records
class ClipRecord:
    """One video of the store: a row of manifest.csv."""

    video_id: str  # "<Class>/<video>", the path of its files below rgb/, flow/, ... without ".mp4"
    source: str  # footage that sibling clips share; a UCF group
    class_name: str  # empty when unlabeled
    label: int  # 0-based; -1 when unlabeled
    num_frames: int
    num_flow: int  # num_frames - 1, or 0 in a store without flow and motion
    fps: float
    width: int  # as stored
    height: int
    source_sha256: str  # of the original video file
    # Of stores made since version 0.2.0; 0 or empty where unknown.
    source_bytes: int = 0  # size and modification time of the original when it was read
    source_mtime_ns: int = 0
    rgb_bytes: int = 0  # size and hash of the stored files
    flow_bytes: int = 0
    rgb_sha256: str = ""
    flow_sha256: str = ""
    flow_bound: float = 0.0  # pixels: the video's flow is clipped to +-flow_bound; 0: as in store.json
    cut_start: float = 0.0  # seconds: the part of the original that was converted; both 0: all of it
    cut_end: float = 0.0  # 0: its end
    motion_bytes: int = 0
    motion_sha256: str = ""
    audio_bytes: int = 0
    audio_sha256: str = ""


TYPES: dict[str, Any] = {field.name: field.type for field in fields(ClipRecord)}
DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(ClipRecord) if field.default is not MISSING}
REQUIRED = [name for name in TYPES if name not in DEFAULTS]
get_required_fields = attrgetter(*REQUIRED)


@dataclass(frozen=True)
class Failure:
    """One video that was skipped: a row of failures.csv."""

    video_id: str
    stage: str  # open, decode, flow, encode, time limit, worker, ...
    reason: str


def read_manifest(path: Path) -> ColumnTable[ClipRecord]:
    """Return the records in file order; ValueError with the row number if a row is malformed, or rows are missing."""
    records = _read_manifest(path)
    if count_error(path, len(records)) is not None:
        records = _read_manifest(path)  # perhaps it was replaced in between
        if (error := count_error(path, len(records))) is not None:
            raise ValueError(error)
    return records


def _read_manifest(path: Path) -> ColumnTable[ClipRecord]:
    table, last_id, is_sorted, row = ColumnBuilder(ClipRecord), b"", True, 2
    with open_table(path, REQUIRED, DEFAULTS) as (names, file):
        for block in read_blocks(file):
            for ids in _add_block(table, block, names, path, row):
                is_sorted = is_sorted and (last_id < ids[0] or row == 2) and all(map(lt, ids, ids[1:]))
                last_id, row = ids[-1], row + len(ids)
    records = table.build()
    if not is_sorted:  # as `write_manifest` leaves it: then no two ids are equal
        duplicate = next((name for name, count in Counter(records.column("video_id")).items() if count > 1), None)
        if duplicate is not None:
            raise ValueError(f"{path}: two rows have video_id {duplicate!r}")
    return records


def _add_block(
    table: ColumnBuilder[ClipRecord], block: bytes, names: Sequence[str], path: Path, row: int
) -> Iterator[Sequence[bytes]]:
    """Append the rows of a block, of which the first has number `row`; yield the ids, some hundred or all at a time."""
    plain = _parse_plain(block, names)
    if plain is not None:
        table.add_parsed(plain[1])
        yield plain[0]
        return
    for columns in parse_block(block, names, path, first_row=row):
        ids = columns["video_id"]
        check_video_ids(ids, f"{path}, from row {row} on")
        check_texts([*columns["source"], *columns["class_name"]], path)
        chunk = {**{name: [str(value)] * len(ids) for name, value in DEFAULTS.items()}, **columns}
        try:
            table.add(chunk)
        except ValueError:
            raise _first_row_error(path, row, chunk) from None
        row += len(ids)
        yield [encode_text(one) for one in ids]


def _parse_plain(block: bytes, names: Sequence[str]) -> tuple[list[bytes], dict[str, Any]] | None:
    """Return ids and columns for `add_parsed`; None if anything in the block must be read the general way."""
    if (cells := split_plain(block, [TYPES[name] is str for name in names])) is None:
        return None
    num_rows = len(cells[0])
    columns: dict[str, Any] = {
        name: (encode_text(value) * num_rows, np.full(num_rows, len(encode_text(value))))
        if isinstance(value, str)
        else np.full(num_rows, value)
        for name, value in DEFAULTS.items()
    }
    integers = [index for index, name in enumerate(names) if TYPES[name] is int]
    values = parse_integers(block, cells[0][:, integers], cells[1][:, integers])
    if values is None:
        return None
    columns |= {names[index]: column for index, column in zip(integers, values.T, strict=True)}
    ids: list[bytes] = []
    for name, starts, ends in zip(names, cells[0].T, cells[1].T, strict=True):
        if name == "video_id":
            ids = cut_cells(block, starts, ends)
            columns[name] = b"".join(ids), ends - starts
        elif TYPES[name] is str:
            columns[name] = join_cells(block, starts, ends), ends - starts
        elif TYPES[name] is float and (numbers := parse_floats(block, starts, ends)) is not None:
            columns[name] = numbers
        elif TYPES[name] is float:
            return None
    return (ids, columns) if _are_valid_names(block, ids, columns) else None


def _are_valid_names(block: bytes, ids: Sequence[bytes], columns: Mapping[str, Any]) -> bool:
    """Check that no id, source or class name of a block is escaped or invalid."""
    paths = b"/".join([b"", *ids, b""]).decode("utf-8", "surrogateescape")
    if is_printable(block, len(ids)):
        return b"'" not in block and are_valid_paths(paths)
    texts = (columns["source"][0] + columns["class_name"][0]).decode("utf-8", "surrogateescape")
    return "'" not in paths and "'" not in texts and are_valid(paths) and texts.isprintable()


def _first_row_error(path: Path, first_row: int, columns: Mapping[str, Sequence[str]]) -> ValueError:
    """Return the error of the first malformed row of a chunk."""
    for offset in range(len(columns["video_id"])):
        try:
            ColumnBuilder(ClipRecord).add({name: values[offset : offset + 1] for name, values in columns.items()})
        except ValueError as error:
            return ValueError(f"{path}, row {first_row + offset}: {error}")
    raise AssertionError("no row of the chunk is malformed")


def write_manifest(path: Path, records: Iterable[ClipRecord]) -> None:
    """Write the records sorted by video_id, so that the same videos give the same bytes.

    A column with a default is left out if no record has another value.
    """
    ordered = sorted(records, key=attrgetter("video_id"))
    columns = used_columns(ordered)
    with recorded_count(path, len(ordered)):
        write_rows(path, columns, map(attrgetter(*columns), ordered))


def used_columns(records: Sequence[ClipRecord]) -> list[str]:
    """Return the fields that some record has a value for: those without a default, or where it is another one."""
    return [
        field.name
        for field in fields(ClipRecord)
        if field.default is MISSING or any(value != field.default for value in get_column(records, field.name))
    ]


def get_column(records: Sequence[ClipRecord], name: str) -> list[Any]:
    """Return one field of all records; of a table of columns, without making the records."""
    return records.column(name) if isinstance(records, ColumnTable) else [getattr(one, name) for one in records]


def record_identity(record: ClipRecord) -> list[str | int | float]:
    """Return the fields that features and caches of a video depend on, as JSON values.

    Without size and time of the source, which say nothing about its frames, and without hashes of the stored files and
    a flow bound where there are none: the identity of a record of an older store stays what it was.
    """
    known = record.rgb_sha256, record.flow_sha256, record.flow_bound, record.motion_sha256, record.audio_sha256
    return [*get_required_fields(record), *filter(None, known)]


def take_records(records: Sequence[ClipRecord], indices: Sequence[int]) -> Sequence[ClipRecord]:
    """Return the records at `indices`; of a table of columns, without copying them."""
    return records.take(indices) if isinstance(records, ColumnTable) else [records[index] for index in indices]


def read_failures(path: Path) -> list[Failure]:
    """Return the failures; a missing file means none."""
    if not path.exists():
        return []
    names = [field.name for field in fields(Failure)]
    failures = []
    for first_row, columns in read_columns(path, names):
        check_video_ids(columns["video_id"], f"{path}, from row {first_row} on")
        failures += [Failure(*values) for values in zip(*(columns[name] for name in names), strict=True)]
    return failures


def write_failures(path: Path, failures: Iterable[Failure]) -> None:
    """Write the failures sorted by video_id."""
    names = [field.name for field in fields(Failure)]
    write_rows(path, names, map(attrgetter(*names), sorted(failures, key=attrgetter("video_id"))))


def read_split(path: Path) -> dict[str, str]:
    """Return {video_id: subset}, where the subset (column `split`) is train, test or val; ValueError if one has two."""
    split: dict[str, str] = {}
    for first_row, columns in read_columns(path, ["video_id", "split"]):
        check_video_ids(columns["video_id"], f"{path}, from row {first_row} on")
        rows = list(zip(columns["video_id"], map(sys.intern, columns["split"]), strict=True))
        num_before = len(split)
        split.update(rows)
        if len(split) < num_before + len(rows):  # some video is listed twice
            raise_conflict(((video_id, subset, split[video_id]) for video_id, subset in rows), path)
    return split


def raise_conflict(listed: Iterable[tuple[str, str, str]], origin: object) -> None:
    """Raise ValueError for the first (video_id, subset, other subset) that has two different subsets."""
    for video_id, subset, other in listed:
        if subset != other:
            raise ValueError(f"{origin}: {video_id!r} is listed twice, in {subset!r} and in {other!r}")


def write_split(path: Path, split: Mapping[str, str]) -> None:
    """Write {video_id: subset} sorted by video_id."""
    write_rows(path, ["video_id", "split"], sorted(split.items()))


FlowBound = Annotated[float, Field(gt=0)] | Literal["size", "auto"]
FlowSize = Literal["stored", "native"]


class FlowInfo(Config):
    """How the flow was computed and quantized; `version` lists the software that determines the values."""

    algorithm: str = "tvl1"
    backend: str
    version: str
    parameters: dict[str, float | int | str]
    bound: FlowBound = Field(description="pixels; by size or by motion (auto): the manifest has that of each video")
    levels: Literal[255, 256] = Field(default=256, description="255: no motion has a level of its own (format 2)")
    size: FlowSize = Field(
        default="stored", description="the frame size that flow was computed at; its values are stored pixels"
    )

    def choose_levels(self, width: int, height: int, motion: NDArray[np.float32] | None = None) -> FlowLevels:
        """Return the quantizer of a video of this stored size and, for the bound `auto`, this motion in pixels."""
        bound = self.bound
        if bound == "size":
            bound = size_bound(width, height)
        elif bound == "auto":
            if motion is None:
                raise ValueError("the flow bound follows the motion of each video, which is not known here")
            bound = motion_bound(motion, width, height)
        return FlowLevels(bound, self.levels)


class StoreInfo(Config):
    """The settings of a store, the same for all of its videos."""

    format: Literal[1, 2] = FORMAT_VERSION
    modalities: tuple[StoredModality, ...]
    short_edge: int = Field(ge=0, description="pixels; 0 = as in the video file")
    max_frames: int = Field(ge=0, description="first frames of each video that are stored; 0 = all")
    fps: float = Field(default=0.0, ge=0, le=240, description="frames per second, resampled; 0 = as in the file")
    quality: int = Field(ge=0, le=51, description="x264 crf of RGB; that of flow is 3 lower")
    keyframe_distance: int = KEYFRAME_DISTANCE
    flow: FlowInfo | None = None
    motion: FlowInfo | None = Field(default=None, description="motion vectors; with flow, they have its levels")
    audio: AudioInfo | None = Field(default=None, description="log-mel spectrograms of the sound")
    software: str = Field(default="", description="the version that created the store")

    @model_serializer(mode="wrap")
    def _omit_new(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out what older versions do not know, if unused: stores and hashes of their settings stay the same."""
        return {key: value for key, value in handler(self).items() if key not in ("fps", "motion", "audio") or value}

    @property
    def quantized(self) -> FlowInfo | None:
        """Whose bound and levels flow and motion are stored with: those of flow if there is any."""
        return self.flow or self.motion

    def origin_of(self, modality: str) -> FlowInfo | None:
        """Return how the stored modality `flow` or `motion` was made; None for another one."""
        return {"flow": self.flow, "motion": self.motion}.get(modality)


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
    values = read_json(path, hint="it is damaged")
    if not isinstance(values, dict) or values.get("format") not in (1, FORMAT_VERSION):
        found = values.get("format") if isinstance(values, dict) else None
        raise ValueError(f"{path}: unknown format {found!r}; this version reads formats 1 and {FORMAT_VERSION}")
    return validate(StoreInfo, values, origin=str(path))
