"""Stages -> a graph, all resolved: settings, places of files, and a key that changes when a stage must be redone."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covid_cmsf.config import merge, read_yaml, validate
from covid_cmsf.cotrain.plan import EvaluationSettings, PlanSettings, StageSettings
from covid_cmsf.cotrain.rounds import stages_of
from covid_cmsf.hashes import file_sha256
from covid_cmsf.training.run_folder import plain
from covid_cmsf.training.settings import RuntimeSettings, TrainSettings
from covid_cmsf.views.settings import ViewSettings

CONTENT = 1  # raise it when what a stage computes changes: everything is computed anew


@dataclass(frozen=True)
class Stage:
    """A stage with its place. `settings` is None where nothing is trained; `key` says what it was made of."""

    chosen: StageSettings
    number: int
    folder: Path
    modality: str
    settings: TrainSettings | None
    needs: tuple[str, ...]
    key: str
    clips: str
    split: str
    views: ViewSettings
    seed: int
    evaluation: EvaluationSettings
    runtime: RuntimeSettings

    @property
    def name(self) -> str:
        """Also the name of its folder."""
        return self.chosen.name

    @property
    def checkpoint(self) -> Path:
        """Its weights, once it is done."""
        if self.chosen.weights is not None:
            return Path(self.chosen.weights)
        return self.folder / "checkpoints" / "last.pt"


def build_graph(plan: PlanSettings, out: Path, *, place: Path, seed: int | None = None) -> list[Stage]:
    """The stages in an order in which they can be done; `place` is the plan's folder, for files that it names."""
    stages: dict[str, Stage] = {}
    for number, chosen in enumerate(stages_of(plan), start=1):
        if chosen.name in stages:
            raise ValueError(f"two stages are called {chosen.name!r}")
        needs = tuple(dict.fromkeys(name for name in (chosen.init, *chosen.guides) if name is not None))
        for name in needs:
            if name not in stages:
                known = ", ".join(stages) or "none"
                raise ValueError(
                    f"stage {chosen.name!r} needs {name!r}, which is no stage before it; there are {known}"
                )
        earlier = [stages[name] for name in needs]
        stages[chosen.name] = _stage(plan, chosen, number, out / chosen.name, earlier, place=place, seed=seed)
    return list(stages.values())


def _stage(
    plan: PlanSettings,
    chosen: StageSettings,
    number: int,
    folder: Path,
    earlier: Sequence[Stage],
    *,
    place: Path,
    seed: int | None,
) -> Stage:
    by_name = {stage.name: stage for stage in earlier}
    needs = tuple(by_name)
    values = _values(plan, chosen, place=place, seed=seed)
    settings = None
    if chosen.trains:
        init = by_name[chosen.init] if chosen.init else None
        guides = [by_name[name] for name in chosen.guides]
        if init is not None:
            values |= {"init": str(init.checkpoint), "init_part": init.chosen.part}
        if guides:
            values["guides"] = [
                {
                    "weights": str(guide.checkpoint),
                    "modality": guide.modality,
                    "part": guide.chosen.part,
                    **chosen.guide_settings,
                }
                for guide in guides
            ]
        settings = validate(TrainSettings, values, place=f"stage {chosen.name}")
    modality = settings.modality if settings is not None else str(chosen.modality)
    key = _key(chosen, settings, values, earlier)
    return Stage(
        chosen,
        number,
        folder,
        modality,
        settings,
        needs,
        key,
        clips=str(values.get("clips", "")),
        split=str(values.get("split", "1")),
        views=validate(ViewSettings, values.get("views", {}), place=f"stage {chosen.name}, section views"),
        seed=int(values.get("seed", 0)),
        evaluation=plan.evaluation,
        runtime=validate(RuntimeSettings, values.get("runtime", {}), place=f"stage {chosen.name}, section runtime"),
    )


def _values(plan: PlanSettings, chosen: StageSettings, *, place: Path, seed: int | None) -> dict[str, Any]:
    """The settings of a training run: the file's, the plan's, the stage's, later ones win."""
    values: dict[str, Any] = read_yaml(place / chosen.config) if chosen.config is not None else {}
    for own in (plan.settings, chosen.settings):
        merge(values, json.loads(json.dumps(own)))  # a copy, all the way down
    if chosen.method:
        merge(values, {"method": chosen.method})
    if chosen.modality is not None:
        values["modality"] = chosen.modality
    if chosen.epochs is not None:
        merge(values, {"schedule": {"epochs": chosen.epochs}})
    if seed is not None:
        values["seed"] = seed
    return values


def _key(
    chosen: StageSettings,
    settings: TrainSettings | None,
    values: dict[str, Any],
    earlier: Sequence[Stage],
) -> str:
    """What the stage is made of: its settings without speed and places, the keys of what it needs, the clips."""
    facts: dict[str, Any] = {"content": CONTENT, "split": values.get("split"), "views": values.get("views")}
    facts["needs"] = [stage.key for stage in earlier]
    facts["clips"] = clips_identity(str(values.get("clips", "")))
    if settings is not None:
        run = plain(settings)
        facts["settings"] = {k: v for k, v in run.items() if k not in ("runtime", "init", "guides", "clips")}
        facts["guides"] = [{k: v for k, v in guide.items() if k != "weights"} for guide in run["guides"]]
        if chosen.init is None and settings.init is not None:
            facts["init"] = _file_hash(settings.init, chosen.name)
        if not chosen.guides:
            facts["files"] = [_file_hash(guide.weights, chosen.name) for guide in settings.guides]
    elif chosen.weights is not None:
        facts["weights"] = [_file_hash(chosen.weights, chosen.name), chosen.part, chosen.modality]
    else:
        made = [chosen.random, chosen.histogram, chosen.modality, values.get("seed", 0)]
        facts["made"] = made
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def _file_hash(path: str, stage: str) -> str:
    if not Path(path).is_file():
        raise FileNotFoundError(f"stage {stage}: no weights file {path}")
    return file_sha256(Path(path))


def clips_identity(path: str) -> list[str]:
    """Hashes of a clip store's tables; other formats are known by their path alone."""
    folder = Path(path)
    tables = [folder / "store.json", folder / "manifest.csv", *sorted((folder / "splits").glob("*.csv"))]
    return [file_sha256(table) for table in tables if table.is_file()] or [path]
