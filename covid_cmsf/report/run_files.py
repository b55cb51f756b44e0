"""JSON files of a run's folder, which may be of others: what a report reads of them has the expected shape."""

import json
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from covid_cmsf.files import read_json, read_text

Values = dict[str, Any]
Number = Annotated[float, Field(allow_inf_nan=False)]
Interval = tuple[Number, Number]


class StageResult(BaseModel):
    """stage.json."""

    key: str | None = None
    r1: Number | None = None
    linear: Number | None = None
    chance: Number | None = None
    effective_rank: Number | None = None
    r1_interval: Interval | None = None
    window_r1: Number | None = None
    window_chance: Number | None = None
    source_r1: Number | None = None
    source_chance: Number | None = None
    agreement: Number | None = None
    seconds: Number | None = None
    seconds_last_start: Number | None = None
    num_query: int | None = None
    num_videos: int | None = None
    skipped: list[Any] = []


class FeaturesProvenance(BaseModel):
    """What a result says about the features that it was measured on."""

    weights_sha256: str | None = None
    store_sha256: str | None = None
    fingerprint: str | None = None
    num_skipped: int | None = None


class Retrieval(BaseModel):
    """retrieval.json."""

    recall: dict[str, Number] = {}
    interval: dict[str, Interval] = {}
    chance: Number | None = None
    effective_rank: Number | None = None
    protocol: str | None = None
    features: list[FeaturesProvenance] = []


class Scores(BaseModel):
    """Of a classifier."""

    top1: Number | None = None
    interval: Interval | None = None


class Linear(BaseModel):
    """linear.json."""

    scores: Scores = Scores()


class Unlabeled(BaseModel):
    """unlabeled.json."""

    effective_rank: Number
    num_videos: int
    window_r1: Number | None = None
    window_chance: Number | None = None
    source_r1: Number | None = None
    source_chance: Number | None = None


class Progress(BaseModel):
    """How long a run took."""

    seconds: Number | None = None


class Guide(BaseModel):
    """A guide of a finished run."""

    sha256: str


class Summary(BaseModel):
    """summary.json."""

    progress: Progress = Progress()
    guides: dict[str, Guide] = {}


class Start(BaseModel):
    """A line of environment.jsonl."""

    command: list[str] = []
    time: str = ""
    versions: Values = {}
    machine: Values = {}


class Checkpoint(BaseModel):
    """An entry of checkpoints/index.json."""

    file: str
    sha256: str


CHECKPOINTS = TypeAdapter(list[Checkpoint])


def read_values(path: Path, shape: type[BaseModel], notes: list[str]) -> Values:
    """Return the mapping of a JSON file; empty if there is none. A damaged one, or of another shape, adds a note."""
    if not path.is_file():
        return {}
    try:
        values: Values = read_json(path)
        shape.model_validate(values)
    except ValueError as error:
        notes.append(f"{path} is damaged ({describe(error, path)})")
        return {}
    return values


def read_starts(path: Path) -> list[Values]:
    """Read environment.jsonl up to its first line that is incomplete or damaged."""
    starts: list[Values] = []
    for line in read_text(path).splitlines() if path.is_file() else []:
        try:
            start = json.loads(line)
            Start.model_validate(start)
        except (ValueError, RecursionError):  # not JSON, or of another shape
            break
        starts.append(start)
    return starts


def last_checkpoint(path: Path) -> Checkpoint | None:
    """Return the last entry of checkpoints/index.json; None if there is none, or the file is damaged."""
    if not path.is_file():
        return None
    try:
        entries = CHECKPOINTS.validate_python(read_json(path))
    except ValueError:  # a run makes it anew
        return None
    return entries[-1] if entries else None


def describe(error: ValueError, path: Path) -> str:
    """Return what is wrong with a file, of several places the first, without its name."""
    if not isinstance(error, ValidationError):
        return str(error).removeprefix(f"{path} is ")
    first = error.errors(include_url=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'its content'}: {first['msg']}"
