"""Read folders of plans and training runs, finished or not."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from covid_cmsf.config import validate
from covid_cmsf.cotrain.graph import repetition_name, stage_values
from covid_cmsf.cotrain.plan import PlanConfig, StageConfig, refuse_old_plan
from covid_cmsf.cotrain.rounds import expand_stages
from covid_cmsf.files import read_json
from covid_cmsf.report import run_files
from covid_cmsf.report.run_files import describe, read_values
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.monitor import last_metrics
from covid_cmsf.training.run_dir import CONFIG_FILE
from covid_cmsf.yaml_files import read_yaml_file

Values = dict[str, Any]
Kind = Literal["pretrain", "round", "control", "baseline"]
FEATURES = "features.safetensors"
ORDER: tuple[Kind, ...] = (
    "pretrain",
    "round",
    "control",
    "baseline",
)  # order of stages in a gallery


@dataclass(frozen=True)
class StageRun:
    """A stage and what it has written so far. Mappings are empty if their file does not exist yet."""

    spec: StageConfig
    folder: Path
    config: TrainConfig | None  # None if nothing is trained, or not known yet
    raw_config: Values = field(default_factory=dict)  # config.yaml
    result: Values = field(default_factory=dict)  # stage.json
    retrieval: Values = field(default_factory=dict)
    linear: Values = field(default_factory=dict)
    summary: Values = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the stage and of its folder."""
        return self.spec.name

    @property
    def modality(self) -> str | None:
        """Modality of the network; None if not known yet."""
        return self.config.modality if self.config is not None else self.spec.modality

    @property
    def kind(self) -> Kind:
        """Kind of stage: a round has a guide; a control has an init but no guide."""
        if not self.spec.trains:
            return "baseline"
        if self.spec.guides:
            return "round"
        return "control" if self.spec.init else "pretrain"

    @property
    def features(self) -> Path | None:
        """Path of the features file; None if there is none."""
        path = self.folder / FEATURES
        return path if path.is_file() else None

    @property
    def state(self) -> str:
        """done, begun or waiting."""
        if self.result or (self.summary and not (self.folder / "stage.key").is_file()):
            return "done"
        return "begun" if last_metrics(self.folder / "metrics.jsonl") or self.raw_config else "waiting"

    @property
    def done_fraction(self) -> float:
        """Finished fraction of the training, 0 to 1."""
        if self.state == "done":
            return 1.0
        line = last_metrics(self.folder / "metrics.jsonl")
        if line is None or self.config is None:
            return 0.0
        epoch: int = line["epoch"]
        return min(1.0, (epoch + 1) / self.config.schedule.epochs)


def read_stage(spec: StageConfig, folder: Path, plan: PlanConfig | None = None) -> StageRun:
    """Read the stage in `folder`; if it does not exist yet, the configuration is that of the plan."""
    notes: list[str] = []
    raw_config = _yaml(folder / CONFIG_FILE)
    return StageRun(
        spec,
        folder,
        _train_config(spec, raw_config, plan, notes, folder),
        raw_config,
        result=read_values(folder / "stage.json", run_files.StageResult, notes),
        retrieval=read_values(folder / "retrieval.json", run_files.Retrieval, notes),
        linear=read_values(folder / "linear.json", run_files.Linear, notes),
        summary=read_values(folder / "summary.json", run_files.Summary, notes),
        notes=tuple(notes),
    )


def _yaml(path: Path) -> Values:
    values = read_yaml_file(path) if path.is_file() else None
    return values if isinstance(values, dict) else {}


def _train_config(
    spec: StageConfig, raw_config: Values, plan: PlanConfig | None, notes: list[str], folder: Path
) -> TrainConfig | None:
    """Return the configuration in the folder, else that of the plan; None if the plan refers to a `config` file."""
    if not spec.trains:
        return None
    values = raw_config or (_planned_values(spec, plan) if plan is not None and spec.config is None else {})
    try:
        return validate(TrainConfig, values, origin=str(folder / CONFIG_FILE)) if values else None
    except ValueError as error:
        notes.append(f"the settings of {spec.name} cannot be read by this version: {error}")
        return None


def _planned_values(spec: StageConfig, plan: PlanConfig) -> Values:
    """Return the configuration of a stage that has not started; files of other stages are given by stage name."""
    values = stage_values(plan, spec, base={})
    values |= {"init": spec.init} if spec.init else {}
    if spec.guides:
        other = next((name for name in plan.modalities if name != spec.modality), "rgb")
        values["guides"] = [{"weights": name, "modality": other} for name in spec.guides]
    return values


PLAN_FILE = "plan.json"
PROJECT_FILE = "project.json"  # of `covid-cmsf learn`, which has its plan in runs/
FOLDER_OF_SEEDS = re.compile(r"(seed|split)-.+")


@dataclass(frozen=True)
class SeedRun:
    """Stages of one seed and split; None for a plan without seeds or `splits`."""

    seed: int | None
    stages: tuple[StageRun, ...]
    split: str | None = None

    @property
    def label(self) -> str:
        """`split 2, seed 0`; empty without."""
        parts = [f"{kind} {value}" for kind, value in (("split", self.split), ("seed", self.seed)) if value is not None]
        return ", ".join(parts)


@dataclass(frozen=True)
class PlanRun:
    """A plan with its stages, or a single run: then `config` is None and there is one stage."""

    name: str  # unique in a report
    folder: Path
    config: PlanConfig | None
    seeds: tuple[SeedRun, ...]

    @property
    def first_seed(self) -> SeedRun:
        """First seed with features, else the first: galleries and maps are of this seed."""
        with_features = [one for one in self.seeds if any(stage.features for stage in one.stages)]
        return (with_features or self.seeds)[0]

    @property
    def stages(self) -> tuple[StageRun, ...]:
        """Stages of all seeds."""
        return tuple(stage for one in self.seeds for stage in one.stages)

    @property
    def clips(self) -> str | None:
        """Path of the clips of the evaluation."""
        if self.config is not None and self.config.evaluation.clips is not None:
            return self.config.evaluation.clips
        for stage in self.stages:
            if stage.config is not None or stage.raw_config.get("clips"):
                return str(stage.raw_config.get("clips") or (stage.config and stage.config.clips))
        return str(self.config.defaults["clips"]) if self.config and "clips" in self.config.defaults else None


def read_runs(paths: Sequence[Path]) -> list[PlanRun]:
    """Read plans and runs; ValueError or FileNotFoundError for a folder that is neither."""
    names = unique_names(paths)
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def read_run(path: Path, name: str) -> PlanRun:
    """Read the folder of a plan, of one of its seeds or splits, of a run, or a project of `covid-cmsf learn`."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"no folder {path}; give the folder of a plan (cotrain --out) or of a run (train --out)"
        )
    if (path / PROJECT_FILE).is_file() and (path / "runs" / PLAN_FILE).is_file():
        path = path / "runs"
    if (path / PLAN_FILE).is_file():
        plan = _read_plan(path / PLAN_FILE)
        return PlanRun(name, path, plan, tuple(_read_seed(plan, path, *one) for one in plan.repetitions))
    folder = path.resolve()
    root = next((parent for parent in list(folder.parents)[:2] if (parent / PLAN_FILE).is_file()), None)
    if root is not None and FOLDER_OF_SEEDS.fullmatch(folder.name):
        plan = _read_plan(root / PLAN_FILE)
        inside = [one for one in plan.repetitions if (root / repetition_name(one[1], one[0])).is_relative_to(folder)]
        if inside:
            return PlanRun(name, path, plan, tuple(_read_seed(plan, root, *one) for one in inside))
    if (path / "config.yaml").is_file() or (path / "metrics.jsonl").is_file():
        stage = read_stage(StageConfig(name=_to_stage_name(path.resolve().name)), path)
        return PlanRun(name, path, None, (SeedRun(None, (stage,)),))
    raise ValueError(f"{path} is neither the folder of a plan (plan.json) nor of a run (config.yaml, metrics.jsonl)")


def unique_names(paths: Sequence[Path]) -> list[str]:
    """Return the last components of the paths, as many as make them unique."""
    full = [path.resolve() for path in paths]
    if len(set(full)) < len(full):
        duplicate = next(path for path in full if full.count(path) > 1)
        raise ValueError(f"{duplicate} is given twice")
    for depth in range(1, max((len(path.parts) for path in full), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in full]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in full]


def _read_seed(plan: PlanConfig, root: Path, split: str | None, seed: int | None) -> SeedRun:
    folder = root / repetition_name(seed, split)
    return SeedRun(seed, tuple(read_stage(spec, folder / spec.name, plan) for spec in expand_stages(plan)), split)


def _read_plan(path: Path) -> PlanConfig:
    try:
        values = read_json(path)
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {describe(error, path)}") from None
    if not isinstance(values, dict):
        raise ValueError(f"{path} is damaged: it is no mapping")
    refuse_old_plan(values, path)
    return validate(PlanConfig, values, origin=str(path))


def _to_stage_name(name: str) -> str:
    """Convert the name of a folder to a valid name of a stage."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")
    return plain or "run"
