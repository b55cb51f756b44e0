"""What a report is about: folders of plans (of one or several seeds) and of single training runs."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from covid_cmsf.config import validate
from covid_cmsf.cotrain.executor import folder_of
from covid_cmsf.cotrain.plan import PlanSettings, StageSettings
from covid_cmsf.cotrain.rounds import stages_of
from covid_cmsf.report.stage_folder import StageFolder, read_stage

PLAN = "plan.json"


@dataclass(frozen=True)
class SeedStages:
    """The stages of one seed; `seed` is None where the plan does not name any."""

    seed: int | None
    stages: tuple[StageFolder, ...]


@dataclass(frozen=True)
class PlanFolder:
    """A plan with its stages, or a single run: then `settings` is None and there is one stage."""

    name: str  # unique in a report
    folder: Path
    settings: PlanSettings | None
    seeds: tuple[SeedStages, ...]

    @property
    def first(self) -> SeedStages:
        """The first seed that has features, else the first: pictures and maps are of this one."""
        with_features = [one for one in self.seeds if any(stage.features for stage in one.stages)]
        return (with_features or self.seeds)[0]

    @property
    def stages(self) -> tuple[StageFolder, ...]:
        """Of all seeds."""
        return tuple(stage for one in self.seeds for stage in one.stages)

    @property
    def clips(self) -> str | None:
        """The address of the clips that it was measured on."""
        if self.settings is not None and self.settings.evaluation.clips is not None:
            return self.settings.evaluation.clips
        for stage in self.stages:
            if stage.settings is not None or stage.config.get("clips"):
                return str(stage.config.get("clips") or (stage.settings and stage.settings.clips))
        return str(self.settings.settings["clips"]) if self.settings and "clips" in self.settings.settings else None


def read_folders(paths: Sequence[Path]) -> list[PlanFolder]:
    """The plans and runs in these folders; ValueError or FileNotFoundError says which one is neither."""
    names = short_names(paths)
    return [read_folder(path, name) for path, name in zip(paths, names, strict=True)]


def read_folder(path: Path, name: str) -> PlanFolder:
    """A plan's folder, the folder of one of its seeds, or a run's."""
    if not path.is_dir():
        raise FileNotFoundError(
            f"no folder {path}; give the folder of a plan (cotrain --out) or of a run (train --out)"
        )
    if (path / PLAN).is_file():
        plan = _read_plan(path / PLAN)
        seeds: tuple[int | None, ...] = plan.seeds or (None,)
        return PlanFolder(name, path, plan, tuple(_of_seed(plan, folder_of(path, seed), seed) for seed in seeds))
    numbered = re.fullmatch(r"seed-(\d+)", path.resolve().name)
    if numbered and (path.resolve().parent / PLAN).is_file():
        plan = _read_plan(path.resolve().parent / PLAN)
        return PlanFolder(name, path, plan, (_of_seed(plan, path, int(numbered[1])),))
    if (path / "config.yaml").is_file() or (path / "metrics.jsonl").is_file():
        stage = read_stage(StageSettings(name=_as_stage_name(path.resolve().name)), path)
        return PlanFolder(name, path, None, (SeedStages(None, (stage,)),))
    raise ValueError(f"{path} is neither the folder of a plan (plan.json) nor of a run (config.yaml, metrics.jsonl)")


def short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as are needed to tell them apart."""
    full = [path.resolve() for path in paths]
    if len(set(full)) < len(full):
        twice = next(path for path in full if full.count(path) > 1)
        raise ValueError(f"{twice} is given twice")
    for depth in range(1, max((len(path.parts) for path in full), default=1) + 1):
        names = ["/".join(path.parts[-depth:]) for path in full]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in full]


def _of_seed(plan: PlanSettings, folder: Path, seed: int | None) -> SeedStages:
    return SeedStages(seed, tuple(read_stage(chosen, folder / chosen.name, plan) for chosen in stages_of(plan)))


def _read_plan(path: Path) -> PlanSettings:
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error}") from None
    return validate(PlanSettings, values, place=str(path))


def _as_stage_name(name: str) -> str:
    """Folders may be called anything; stages have plain names."""
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", name).lstrip("._-")
    return plain or "run"
