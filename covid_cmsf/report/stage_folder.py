"""The folder of one stage, or of one training run, read as far as it is there: half-finished ones too."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from covid_cmsf.config import merge, validate
from covid_cmsf.cotrain.plan import PlanSettings, StageSettings
from covid_cmsf.training.metrics import last_metrics
from covid_cmsf.training.run_folder import CONFIG
from covid_cmsf.training.settings import TrainSettings

Values = dict[str, Any]
Kind = Literal["start", "round", "control", "baseline"]
FEATURES = "features.safetensors"
ORDER: tuple[Kind, ...] = ("start", "round", "control", "baseline")  # how stages of one modality are put side by side


@dataclass(frozen=True)
class StageFolder:
    """What a stage is and what it has written so far. Mappings are empty where their file is not there yet."""

    chosen: StageSettings
    folder: Path
    settings: TrainSettings | None  # None where nothing is trained, or where nobody knows yet
    config: Values = field(default_factory=dict)  # config.yaml
    result: Values = field(default_factory=dict)  # stage.json
    retrieval: Values = field(default_factory=dict)
    linear: Values = field(default_factory=dict)
    summary: Values = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Of the stage, and of its folder."""
        return self.chosen.name

    @property
    def modality(self) -> str | None:
        """What the network sees; None while nobody knows."""
        return self.settings.modality if self.settings is not None else self.chosen.modality

    @property
    def kind(self) -> Kind:
        """Its part in the plan: rounds are guided, controls go on from a start without a guide."""
        if not self.chosen.trains:
            return "baseline"
        if self.chosen.guides:
            return "round"
        return "control" if self.chosen.init else "start"

    @property
    def features(self) -> Path | None:
        """Its features file, where there is one."""
        path = self.folder / FEATURES
        return path if path.is_file() else None

    @property
    def state(self) -> str:
        """done, begun or waiting."""
        if self.result or (self.summary and not (self.folder / "stage.key").is_file()):
            return "done"
        return "begun" if last_metrics(self.folder / "metrics.jsonl") or self.config else "waiting"

    @property
    def done_share(self) -> float:
        """Of its training, 0 to 1."""
        if self.state == "done":
            return 1.0
        line = last_metrics(self.folder / "metrics.jsonl")
        if line is None or self.settings is None:
            return 0.0
        return min(1.0, (line["epoch"] + 1) / self.settings.schedule.epochs)


def read_stage(chosen: StageSettings, folder: Path, plan: PlanSettings | None = None) -> StageFolder:
    """The stage in `folder`, which need not exist yet; then its settings are what the plan says."""
    notes: list[str] = []
    config = _yaml(folder / CONFIG)
    return StageFolder(
        chosen,
        folder,
        _settings(chosen, config, plan, notes, folder),
        config,
        result=read_json(folder / "stage.json", notes),
        retrieval=read_json(folder / "retrieval.json", notes),
        linear=read_json(folder / "linear.json", notes),
        summary=read_json(folder / "summary.json", notes),
        notes=tuple(notes),
    )


def read_json(path: Path, notes: list[str]) -> Values:
    """The mapping in a file; empty where there is none. A damaged file is noted."""
    if not path.is_file():
        return {}
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        notes.append(f"{path} is damaged ({error})")
        return {}
    return values if isinstance(values, dict) else {}


def _yaml(path: Path) -> Values:
    values = yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None
    return values if isinstance(values, dict) else {}


def _settings(
    chosen: StageSettings, config: Values, plan: PlanSettings | None, notes: list[str], folder: Path
) -> TrainSettings | None:
    """Those in the folder, else those that the plan itself holds; a plan's `config` file is known only once begun."""
    if not chosen.trains:
        return None
    values = config or (_planned(chosen, plan) if plan is not None and chosen.config is None else {})
    try:
        return validate(TrainSettings, values, place=str(folder / CONFIG)) if values else None
    except ValueError as error:
        notes.append(f"the settings of {chosen.name} cannot be read by this version: {error}")
        return None


def _planned(chosen: StageSettings, plan: PlanSettings) -> Values:
    values: Values = {}
    for own in (plan.settings, chosen.settings, {"method": chosen.method} if chosen.method else {}):
        merge(values, json.loads(json.dumps(own)))  # a copy, all the way down
    values |= {"modality": chosen.modality} if chosen.modality else {}
    values |= {"init": chosen.init} if chosen.init else {}
    if chosen.epochs is not None:
        merge(values, {"schedule": {"epochs": chosen.epochs}})
    if chosen.guides:
        other = next((name for name in plan.modalities if name != chosen.modality), "rgb")
        values["guides"] = [{"weights": name, "modality": other} for name in chosen.guides]
    return values
