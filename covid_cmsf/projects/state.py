"""A project's folder and its state. Every file is written under a temporary name and renamed, project.json as well.

project.json      format, the folder of videos, settings, what was trained
plan.yaml         the plan (plan-2.yaml, ... of `--retrain`)
clips/            clip store of all videos
trained-on/       the tables of the videos that the plan trains on: videos that are added later change no training
runs/             the plan's folder (runs-2/, ...)
features/         rgb.features, flow.features: every video that is there
index/, page/     what search and the page read
"""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from covid_cmsf import __version__
from covid_cmsf.config import Config, validate
from covid_cmsf.files import read_text, write_text_atomic
from covid_cmsf.projects.sizes import Preset
from covid_cmsf.search.project import CLIPS_FOLDER, FEATURES_FOLDER, INDEX_FOLDER, PROJECT_FILE
from preprocess.layouts.video_list import is_video_list

FORMAT = 1


class Trained(Config):
    """What the last training ended with."""

    plan_sha256: str  # of the plan's text
    encoders: dict[str, str]  # {modality: checkpoint, relative to the project}


class State(Config):
    """The content of project.json."""

    format: int = FORMAT
    software: str = f"covid-cmsf {__version__}"
    videos: str = Field(description="absolute path of the folder or list of videos")
    short_edge: int
    seed: int = 0
    layout: str = "flat"
    source_pattern: str | None = None
    labels: str | None = Field(default=None, description="absolute path of a CSV file: file,label[,source]")
    image: str | None = Field(default=None, description="image network in the index: timm:NAME")
    guide: str | None = Field(default=None, description="network of another library that guides both: timm:NAME")
    time_seconds: float | None = Field(default=None, description="--time, for which these two were chosen:")
    preset: Preset | None = None
    epochs_factor: float = 1.0
    generation: int = Field(default=1, description="1, and one more per --retrain")
    finished: int = Field(default=0, description="the last generation that reached the page")
    trained: Trained | None = None
    index_key: str = ""
    page_key: str = ""


@dataclass(frozen=True)
class Project:
    """Paths of a project."""

    folder: Path

    @property
    def clips(self) -> Path:
        """The clip store."""
        return self.folder / CLIPS_FOLDER

    @property
    def features(self) -> Path:
        """The folder of the features files."""
        return self.folder / FEATURES_FOLDER

    @property
    def index(self) -> Path:
        """The search index."""
        return self.folder / INDEX_FOLDER

    @property
    def page(self) -> Path:
        """The folder of the page."""
        return self.folder / "page"

    def plan(self, generation: int) -> Path:
        """Return the plan of a generation."""
        return self.folder / _numbered("plan", generation, ".yaml")

    def runs(self, generation: int) -> Path:
        """Return the plan's folder of a generation."""
        return self.folder / _numbered("runs", generation)

    def trained_on(self, generation: int) -> Path:
        """Return the tables of the videos that a generation trains on."""
        return self.folder / _numbered("trained-on", generation)

    def read(self) -> State:
        """Return the state; ValueError if the file is damaged or of a newer version."""
        path = self.folder / PROJECT_FILE
        try:
            values: Any = json.loads(read_text(path))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path} is damaged: {error}") from None
        if not isinstance(values, dict) or values.get("format") != FORMAT:
            number = values.get("format") if isinstance(values, dict) else None
            raise ValueError(f"{path} has format {number!r}; this version reads format {FORMAT}")
        return validate(State, values, origin=str(path))

    def write(self, state: State) -> State:
        """Store the state and return it."""
        write_text_atomic(self.folder / PROJECT_FILE, state.model_dump_json(indent=1) + "\n")
        return state

    def exists(self) -> bool:
        """Whether the folder is a project."""
        return (self.folder / PROJECT_FILE).is_file()


def _numbered(name: str, generation: int, suffix: str = "") -> str:
    return name + (f"-{generation}" if generation > 1 else "") + suffix


def check_place(folder: Path, videos: Path) -> None:
    """Raise an error unless `folder` can be a project of `videos`: new, empty or a project, and not within them."""
    if not videos.is_dir() and not (is_video_list(videos) and videos.is_file()):
        raise FileNotFoundError(f"there is no folder {videos}, and no list of videos (.csv, .jsonl) of this name")
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; --out needs a folder")
    inside, root = Path(os.path.realpath(folder)), Path(os.path.realpath(videos))
    if inside == root or inside.is_relative_to(root):
        raise ValueError(f"{folder} is inside {videos}: its own clips would be taken for videos; choose another --out")
    if folder.is_dir() and not (folder / PROJECT_FILE).is_file():
        others = [path.name for path in folder.iterdir() if not path.name.startswith(".")]
        if others:
            raise FileExistsError(
                f"{folder} has other files ({others[0]}) and is no project; choose an empty or new folder for --out"
            )


def text_hash(*texts: str) -> str:
    """Return the SHA-256 of some texts."""
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()
