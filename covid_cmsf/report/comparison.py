"""Several plans or runs side by side: those that differ only in their seed are one group, with mean and spread."""

import json
import statistics
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

from covid_cmsf.cotrain.table import Row
from covid_cmsf.report.plan_folder import PlanFolder
from covid_cmsf.report.plan_rows import plan_rows

MEASURES = ("r1", "linear")


def same_but_for_the_seed(plan: PlanFolder) -> str:
    """A text that is equal for plans (or runs) of which only seeds, speed and places differ."""
    if plan.settings is not None:
        values: dict[str, Any] = plan.settings.model_dump(mode="json", exclude={"seeds"})
        _drop_(values["settings"])
        return json.dumps(values, sort_keys=True)
    values = deepcopy(plan.stages[0].config)
    _drop_(values)
    values |= {"init": bool(values.get("init"))}
    values["guides"] = [{k: v for k, v in guide.items() if k != "weights"} for guide in values.get("guides") or []]
    return json.dumps(values, sort_keys=True, default=str)


def _drop_(settings: dict[str, Any]) -> None:
    for name in ("seed", "runtime", "clips"):
        settings.pop(name, None)


def group_numbers(plans: Sequence[PlanFolder]) -> list[int]:
    """The group of each plan, counted from 0 in the order in which groups come."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(same_but_for_the_seed(plan), len(numbers)) for plan in plans]


def compare(plans: Sequence[PlanFolder]) -> dict[str, Any]:
    """Groups with the names of their plans, and for each stage R@1 and linear accuracy by group."""
    groups = group_numbers(plans)
    found: dict[str, dict[int, list[Row]]] = {}
    for plan, group in zip(plans, groups, strict=True):
        for one in plan.seeds:
            for row in plan_rows(PlanFolder(plan.name, plan.folder, plan.settings, (one,))):
                found.setdefault(_stage_words(plan, row), {}).setdefault(group, []).append(row)
    stages = []
    for words, by_group in found.items():
        first = next(iter(by_group.values()))[0]
        cells = {str(group): _cell(rows) for group, rows in by_group.items()}
        stages.append({"stage": words, "model": first["model"], "modality": first["modality"], "groups": cells})
    return {"groups": _groups(plans, groups), "stages": stages}


def mean_and_spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean, standard deviation (None of a single value) and the values themselves."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values) if values else None, "sd": spread, "values": list(values)}


def _groups(plans: Sequence[PlanFolder], numbers: Sequence[int]) -> list[dict[str, Any]]:
    groups = []
    for number in range(max(numbers) + 1):
        members = [plan for plan, own in zip(plans, numbers, strict=True) if own == number]
        seeds = [_seed(plan, one.seed) for plan in members for one in plan.seeds]
        groups.append({"name": members[0].name, "plans": [plan.name for plan in members], "seeds": seeds})
    return groups


def _seed(plan: PlanFolder, seed: int | None) -> int | None:
    if seed is not None:
        return seed
    return next((stage.settings.seed for stage in plan.stages if stage.settings is not None), None)


def _stage_words(plan: PlanFolder, row: Row) -> str:
    """Runs are called by what they are: their folders' names differ from seed to seed."""
    return str(row["stage"]) if plan.settings is not None else f"{row['model']} on {row['modality']}"


def _cell(rows: Sequence[Row]) -> dict[str, Any]:
    return {name: mean_and_spread([row[name] for row in rows if row[name] is not None]) for name in MEASURES}
