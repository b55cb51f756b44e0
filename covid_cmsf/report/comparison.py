"""Compare plans or runs: those that differ only in their seed form a group, with mean and standard deviation."""

import json
import statistics
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from covid_cmsf.cotrain.table import Row
from covid_cmsf.report.plan_summary import plan_rows
from covid_cmsf.report.runs import PlanRun

METRICS = ("r1", "linear")
CHANCE = "chance"  # a baseline's name, and the column of what a random ranking has


def config_without_seed(plan: PlanRun) -> str:
    """Return a text that is equal for plans (or runs) that differ only in seeds, runtime and paths."""
    if plan.config is not None:
        values: dict[str, Any] = plan.config.model_dump(mode="json", exclude={"seeds"})
        _drop_run_keys_(values["defaults"])
        return json.dumps(values, sort_keys=True)
    values = deepcopy(plan.stages[0].raw_config)
    _drop_run_keys_(values)
    values |= {"init": bool(values.get("init"))}
    values["guides"] = [{k: v for k, v in guide.items() if k != "weights"} for guide in values.get("guides") or []]
    return json.dumps(values, sort_keys=True, default=str)


def _drop_run_keys_(config: dict[str, Any]) -> None:
    for name in ("seed", "runtime", "clips"):
        config.pop(name, None)


def group_numbers(plans: Sequence[PlanRun]) -> list[int]:
    """Return the group of each plan, numbered from 0 by first occurrence."""
    numbers: dict[str, int] = {}
    return [numbers.setdefault(config_without_seed(plan), len(numbers)) for plan in plans]


def compare(plans: Sequence[PlanRun]) -> dict[str, Any]:
    """Return the groups with their plans, and R@1 and linear accuracy per stage and group."""
    groups = group_numbers(plans)
    rows_by_stage: dict[str, dict[int, list[Row]]] = {}
    for plan, group in zip(plans, groups, strict=True):
        for one in plan.seeds:
            for row in plan_rows(PlanRun(plan.name, plan.folder, plan.config, (one,))):
                rows_by_stage.setdefault(_stage_label(plan, row), {}).setdefault(group, []).append(row)
    stages = []
    for label, by_group in rows_by_stage.items():
        first = next(iter(by_group.values()))[0]
        cells = {str(group): _cell(rows) for group, rows in by_group.items()}
        stages.append({"stage": label, "model": first["model"], "modality": first["modality"], "groups": cells})
    return {"groups": _groups(plans, groups), "stages": [*_chance(rows_by_stage), *stages]}


def _chance(rows_by_stage: Mapping[str, Mapping[int, Sequence[Row]]]) -> list[dict[str, Any]]:
    """Return the row of a random ranking; empty if the plans have one as a baseline, or nothing is measured."""
    by_group: dict[str, dict[str, Any]] = {}
    for by_number in rows_by_stage.values():
        for number, rows in by_number.items():
            values = [row["chance"] for row in rows if row.get("chance") is not None]
            if values:
                linear = mean_and_std(values[:1] if any(row["linear"] is not None for row in rows) else [])
                by_group.setdefault(str(number), {"r1": mean_and_std(values[:1]), "linear": linear})
                if linear["values"]:
                    by_group[str(number)]["linear"] = linear
    if CHANCE in rows_by_stage or not by_group:
        return []
    return [{"stage": CHANCE, "model": CHANCE, "modality": None, "groups": by_group}]


def mean_and_std(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, standard deviation (None for a single value) and the values."""
    spread = statistics.stdev(values) if len(values) > 1 else None
    return {"mean": statistics.mean(values) if values else None, "sd": spread, "values": list(values)}


def _groups(plans: Sequence[PlanRun], numbers: Sequence[int]) -> list[dict[str, Any]]:
    groups = []
    for number in range(max(numbers) + 1):
        members = [plan for plan, group in zip(plans, numbers, strict=True) if group == number]
        seeds = [_seed(plan, one.seed) for plan in members for one in plan.seeds]
        groups.append({"name": members[0].name, "plans": [plan.name for plan in members], "seeds": seeds})
    return groups


def _seed(plan: PlanRun, seed: int | None) -> int | None:
    if seed is not None:
        return seed
    return next((stage.config.seed for stage in plan.stages if stage.config is not None), None)


def _stage_label(plan: PlanRun, row: Row) -> str:
    """Runs are called by what they are: their folders' names differ from seed to seed."""
    return str(row["stage"]) if plan.config is not None else f"{row['model']} on {row['modality']}"


def _cell(rows: Sequence[Row]) -> dict[str, Any]:
    return {name: mean_and_std([row[name] for row in rows if row[name] is not None]) for name in METRICS}
