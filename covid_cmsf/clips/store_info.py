"""store.json: how the files of a clip store were made, and the rule for where they stand."""

import json
from pathlib import Path
from typing import Literal

from pydantic import Field

from covid_cmsf.config import Settings, validate

FORMAT: Literal[1] = 1
KEYFRAME_DISTANCE = 8
Modality = Literal["rgb", "flow"]


class FlowInfo(Settings):
    """The flow's algorithm; `version` names the software that decides the values."""

    algorithm: str = "tvl1"
    backend: str
    version: str
    parameters: dict[str, float | int]
    bound: float = Field(gt=0)


class StoreInfo(Settings):
    """What must be the same for all videos of a store."""

    format: Literal[1] = FORMAT
    modalities: tuple[Modality, ...]
    short_edge: int = Field(ge=0, description="pixels; 0 = as the source")
    max_frames: int = Field(ge=0, description="frames taken from each video; 0 = all")
    quality: int = Field(ge=0, le=51, description="x264 crf of RGB; flow is stored 3 steps finer")
    keyframe_distance: int = KEYFRAME_DISTANCE
    flow: FlowInfo | None = None
    software: str = Field(default="", description="the version that created the store")


def clip_path(store: Path, modality: str, video_id: str) -> Path:
    """Where a video's file stands: <store>/<modality>/<Class>/<video>.mp4."""
    return store / modality / f"{video_id}.mp4"


def info_text(info: StoreInfo) -> str:
    """The text of store.json."""
    return json.dumps(info.model_dump(mode="json"), indent=2) + "\n"


def read_info(store: Path) -> StoreInfo:
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
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        found = values.get("format") if isinstance(values, dict) else None
        raise ValueError(f"{path}: format {found!r} is not the format {FORMAT} that this version reads")
    return validate(StoreInfo, values, place=str(path))
