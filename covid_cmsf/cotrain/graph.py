"""Stages -> a graph, all resolved: settings, places of files, and a key that changes when a stage must be redone."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covid_cmsf.config import deep_update, read_yaml, validate
from covid_cmsf.cotrain.plan import EvaluationConfig, PlanConfig, StageConfig
from covid_cmsf.cotrain.rounds import expand_stages
from covid_cmsf.files import file_sha256
from covid_cmsf.training.config import RuntimeConfig, TrainConfig
from covid_cmsf.training.run_dir import config_to_dict
from covid_cmsf.views.config import ViewConfig

CONTENT = 1  # raise it when what a stage computes changes: everything is computed anew


@dataclass(frozen=True)
class Stage:
    """A stage with its place. `config` is None where nothing is trained; `key` says what it was made of."""

    spec: StageConfig
    number: int
    folder: Path
    modality: str
    config: TrainConfig | None
    needs: tuple[str, ...]
    key: str
    clips: str
    split: str
    views: ViewConfig
    seed: int
    evaluation: EvaluationConfig
    runtime: RuntimeConfig

    @property
    def name(self) -> str:
        """Also the name of its folder."""
        return self.spec.name

    @property
    def checkpoint(self) -> Path:
        """Its weights, once it is done."""
        if self.spec.weights is not None:
            return Path(self.spec.weights)
        return self.folder / "checkpoints" / "last.pt"


def build_graph(plan: PlanConfig, out: Path, *, plan_dir: Path, seed: int | None = None) -> list[Stage]:
    """The stages in an order in which they can be done; `plan_dir` is the plan's folder, for files that it names."""
    stages: dict[str, Stage] = {}
    for number, spec in enumerate(expand_stages(plan), start=1):
        if spec.name in stages:
            raise ValueError(f"two stages are called {spec.name!r}")
        needs = tuple(dict.fromkeys(name for name in (spec.init, *spec.guides) if name is not None))
        for name in needs:
            if name not in stages:
                known = ", ".join(stages) or "none"
                raise ValueError(f"stage {spec.name!r} needs {name!r}, which is no stage before it; there are {known}")
        earlier = [stages[name] for name in needs]
        stages[spec.name] = _build_stage(plan, spec, number, out / spec.name, earlier, plan_dir=plan_dir, seed=seed)
    return list(stages.values())


def _build_stage(
    plan: PlanConfig,
    spec: StageConfig,
    number: int,
    folder: Path,
    earlier: Sequence[Stage],
    *,
    plan_dir: Path,
    seed: int | None,
) -> Stage:
    by_name = {stage.name: stage for stage in earlier}
    needs = tuple(by_name)
    values = _merge_values(plan, spec, plan_dir=plan_dir, seed=seed)
    config = None
    if spec.trains:
        init = by_name[spec.init] if spec.init else None
        guides = [by_name[name] for name in spec.guides]
        if init is not None:
            values |= {"init": str(init.checkpoint), "init_branch": init.spec.branch}
        if guides:
            values["guides"] = [
                {
                    "weights": str(guide.checkpoint),
                    "modality": guide.modality,
                    "branch": guide.spec.branch,
                    **spec.guide_overrides,
                }
                for guide in guides
            ]
        config = validate(TrainConfig, values, origin=f"stage {spec.name}")
    modality = config.modality if config is not None else str(spec.modality)
    key = _stage_key(spec, config, values, earlier)
    return Stage(
        spec,
        number,
        folder,
        modality,
        config,
        needs,
        key,
        clips=str(values.get("clips", "")),
        split=str(values.get("split", "1")),
        views=validate(ViewConfig, values.get("views", {}), origin=f"stage {spec.name}, section views"),
        seed=int(values.get("seed", 0)),
        evaluation=plan.evaluation,
        runtime=validate(RuntimeConfig, values.get("runtime", {}), origin=f"stage {spec.name}, section runtime"),
    )


def _merge_values(plan: PlanConfig, spec: StageConfig, *, plan_dir: Path, seed: int | None) -> dict[str, Any]:
    """The settings of a training run: the file's, the plan's, the stage's, later ones win."""
    values: dict[str, Any] = read_yaml(plan_dir / spec.config) if spec.config is not None else {}
    for own in (plan.defaults, spec.overrides):
        deep_update(values, json.loads(json.dumps(own)))  # a copy, all the way down
    if spec.method:
        deep_update(values, {"method": spec.method})
    if spec.modality is not None:
        values["modality"] = spec.modality
    if spec.epochs is not None:
        deep_update(values, {"schedule": {"epochs": spec.epochs}})
    if seed is not None:
        values["seed"] = seed
    return values


def _stage_key(
    spec: StageConfig,
    config: TrainConfig | None,
    values: dict[str, Any],
    earlier: Sequence[Stage],
) -> str:
    """What the stage is made of: its settings without speed and places, the keys of what it needs, the clips."""
    contents: dict[str, Any] = {"content": CONTENT, "split": values.get("split"), "views": values.get("views")}
    contents["needs"] = [stage.key for stage in earlier]
    contents["clips"] = clips_fingerprint(str(values.get("clips", "")))
    if config is not None:
        run = config_to_dict(config)
        contents["config"] = {k: v for k, v in run.items() if k not in ("runtime", "init", "guides", "clips")}
        contents["guides"] = [{k: v for k, v in guide.items() if k != "weights"} for guide in run["guides"]]
        if spec.init is None and config.init is not None:
            contents["init"] = _file_hash(config.init, spec.name)
        if not spec.guides:
            contents["files"] = [_file_hash(guide.weights, spec.name) for guide in config.guides]
    elif spec.weights is not None:
        contents["weights"] = [_file_hash(spec.weights, spec.name), spec.branch, spec.modality]
    else:
        made = [spec.random, spec.histogram, spec.modality, values.get("seed", 0)]
        contents["made"] = made
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()


def _file_hash(path: str, stage: str) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"stage {stage}: no weights file {path}")
    return file_sha256(Path(path))


def clips_fingerprint(path: str) -> list[str]:
    """Hashes of a clip store's tables; other formats are known by their path alone."""
    folder = Path(path)
    tables = [folder / "store.json", folder / "manifest.csv", *sorted((folder / "splits").glob("*.csv"))]
    return [file_sha256(table) for table in tables if table.is_file()] or [path]
