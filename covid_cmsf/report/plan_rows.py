"""The table of a plan in the paper's shape, from whatever its stages have written, finished or not."""

import json
from pathlib import Path
from typing import Any

from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.plan import EvaluationSettings
from covid_cmsf.cotrain.table import Row, over_seeds, rows_of
from covid_cmsf.report.plan_folder import PlanFolder, SeedStages
from covid_cmsf.report.stage_folder import StageFolder
from covid_cmsf.training.settings import RuntimeSettings
from covid_cmsf.views.settings import ViewSettings

RESULTS = ("r1", "linear", "seconds", "r1_interval", "effective_rank")


def plan_rows(plan: PlanFolder) -> list[Row]:
    """A row a stage, with `state` and `done_share`; mean and spread where there are several seeds."""
    chance = plan.settings is not None and "chance" in plan.settings.baselines
    tables = [_seed_rows(plan, one, chance=chance) for one in plan.seeds]
    rows = over_seeds(tables) if len(tables) > 1 else tables[0]
    for row, *others in zip(rows, *tables, strict=True):
        states = {one["state"] for one in others}
        row["state"] = states.pop() if len(states) == 1 else "begun"
        row["done_share"] = sum(one["done_share"] for one in others) / len(others)
    return rows


def _seed_rows(plan: PlanFolder, one: SeedStages, *, chance: bool) -> list[Row]:
    stages = [_as_stage(plan, stage, number) for number, stage in enumerate(one.stages, start=1)]
    rows = rows_of(stages, chance=chance)
    earlier = _written_rows(plan.folder)
    for row, stage in zip(rows[chance:], one.stages, strict=True):
        row |= _measured(stage)
        row |= {"state": stage.state, "done_share": stage.done_share, "kind": stage.kind}
        if stage.settings is None and stage.chosen.trains:  # its training file is known once it has begun
            known = earlier.get(stage.name, {})
            words = stage.chosen.model or known.get("model") or "not begun"
            row |= {"model": words, "modality": stage.modality or known.get("modality"), "epochs": known.get("epochs")}
        if plan.settings is None:
            row |= _alone(stage)
    if chance:
        value = next((stage.result["chance"] for stage in one.stages if "chance" in stage.result), None)
        rows[0] |= {"r1": value, "linear": value, "state": "done", "done_share": 1.0, "kind": "baseline"}
    return rows


def _measured(stage: StageFolder) -> dict[str, Any]:
    """From stage.json; of a single run from the results that stand in its folder."""
    found = {name: stage.result.get(name) for name in RESULTS}
    if not stage.result:
        found["r1"] = stage.retrieval.get("recall", {}).get("1")
        found["r1_interval"] = stage.retrieval.get("interval", {}).get("1")
        found["linear"] = stage.linear.get("scores", {}).get("top1")
        found["seconds"] = stage.summary.get("progress", {}).get("seconds")
        found["effective_rank"] = stage.retrieval.get("effective_rank")
    found["linear_interval"] = stage.linear.get("scores", {}).get("interval")
    found["recall"] = stage.retrieval.get("recall")
    return found


def _alone(stage: StageFolder) -> dict[str, Any]:
    """What a run that is no plan's stage starts from and is guided by: files."""
    if stage.settings is None:
        return {}
    guides = [guide.weights for guide in stage.settings.guides]
    start = stage.settings.init
    protocol = stage.retrieval.get("protocol")
    return {"init": start, "constraint": ", ".join(guides) or None, "protocol": protocol}


def _as_stage(plan: PlanFolder, stage: StageFolder, number: int) -> Stage:
    """As the planner has it, to be put into words by the planner's own table."""
    chosen, settings = stage.chosen, stage.settings
    return Stage(
        chosen,
        number,
        stage.folder,
        modality=stage.modality or "",
        settings=settings,
        needs=(),
        key="",
        clips="",
        split="",
        views=ViewSettings(),
        seed=0,
        evaluation=plan.settings.evaluation if plan.settings is not None else EvaluationSettings(),
        runtime=RuntimeSettings(),
    )


def _written_rows(folder: Path) -> dict[str, Row]:
    """The table that the plan wrote when it last ended, by stage."""
    path = folder / "table.json"
    if not path.is_file():
        return {}
    try:
        return {row["stage"]: row for row in json.loads(path.read_text(encoding="utf-8"))}
    except (json.JSONDecodeError, KeyError, TypeError):
        return {}
