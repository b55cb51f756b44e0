"""Table and graph layout of a plan, from what its stages have written so far."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from covid_cmsf.cotrain.answers import ANSWERS_FILE, METRICS, read_answers
from covid_cmsf.cotrain.gains import Pair, compute_gains, gain_pairs
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.plan import EvaluationConfig
from covid_cmsf.cotrain.table import Row, mean_over_seeds, result_columns, table_rows
from covid_cmsf.evaluation.answers import SeedAnswers
from covid_cmsf.files import read_text
from covid_cmsf.report.file_watch import file_stamp
from covid_cmsf.report.runs import PlanRun, SeedRun, StageRun
from covid_cmsf.training.config import RuntimeConfig
from covid_cmsf.views.config import ViewConfig


def plan_rows(plan: PlanRun) -> list[Row]:
    """Return a row per stage with `state` and `done_fraction`; seeds and splits give mean and standard deviation."""
    chance = plan.config is not None and "chance" in plan.config.baselines
    tables = [_seed_rows(plan, one, chance=chance) for one in plan.seeds]
    splits = list(dict.fromkeys(one.split for one in plan.seeds))
    by_split = [[rows for one, rows in zip(plan.seeds, tables, strict=True) if one.split == split] for split in splits]
    rows = mean_over_seeds(by_split) if len(tables) > 1 else tables[0]
    for row, *others in zip(rows, *tables, strict=True):
        states = {one["state"] for one in others}
        row["state"] = states.pop() if len(states) == 1 else "begun"
        row["done_fraction"] = sum(one["done_fraction"] for one in others) / len(others)
    return rows


def _seed_rows(plan: PlanRun, one: SeedRun, *, chance: bool) -> list[Row]:
    stages = [_to_stage(plan, stage, number) for number, stage in enumerate(one.stages, start=1)]
    rows = table_rows(stages, chance=chance)
    written_rows = _read_table(plan.folder)
    for row, stage in zip(rows[chance:], one.stages, strict=True):
        row |= _result_columns(stage)
        row |= {"state": stage.state, "done_fraction": stage.done_fraction, "kind": stage.kind}
        if stage.config is None and stage.spec.trains:  # its `config` file is known once it has started
            written = written_rows.get(stage.name, {})
            model = stage.spec.model or written.get("model") or "not started"
            row |= {
                "model": model,
                "modality": stage.modality or written.get("modality"),
                "epochs": written.get("epochs"),
            }
        if plan.config is None:
            row |= _run_columns(stage)
    if chance:
        value = next((stage.result["chance"] for stage in one.stages if "chance" in stage.result), None)
        rows[0] |= {"r1": value, "linear": value, "state": "done", "done_fraction": 1.0, "kind": "baseline"}
        rows[0]["done"] = value is not None
    return rows


def _result_columns(stage: StageRun) -> dict[str, Any]:
    """Return the results from stage.json, or of a single run from the files in its folder."""
    columns = result_columns(stage.result)
    if not stage.result:
        columns["r1"] = stage.retrieval.get("recall", {}).get("1")
        columns["r1_interval"] = stage.retrieval.get("interval", {}).get("1")
        columns["linear"] = stage.linear.get("scores", {}).get("top1")
        columns["seconds"] = stage.summary.get("progress", {}).get("seconds")
        columns["effective_rank"] = stage.retrieval.get("effective_rank")
        columns["chance"] = stage.retrieval.get("chance")
    columns["linear_interval"] = stage.linear.get("scores", {}).get("interval")
    columns["recall"] = stage.retrieval.get("recall")
    return columns


def _run_columns(stage: StageRun) -> dict[str, Any]:
    """Return init and guides of a run outside of a plan: paths of files."""
    if stage.config is None:
        return {}
    guides = [guide.weights for guide in stage.config.guides]
    protocol = stage.retrieval.get("protocol")
    return {"init": stage.config.init, "constraint": ", ".join(guides) or None, "protocol": protocol}


def _to_stage(plan: PlanRun, stage: StageRun, number: int) -> Stage:
    """Convert to a `Stage`, for `table_rows` of co-training."""
    spec, config = stage.spec, stage.config
    return Stage(
        spec,
        number,
        stage.folder,
        modality=stage.modality or "",
        config=config,
        needs=(),
        key="",
        clips="",
        split="",
        views=ViewConfig(),
        seed=0,
        evaluation=plan.config.evaluation if plan.config is not None else EvaluationConfig(),
        runtime=RuntimeConfig(),
    )


def _read_table(folder: Path) -> dict[str, Row]:
    """Read the last written table.json, by stage."""
    path = folder / "table.json"
    if not path.is_file():
        return {}
    try:
        return {row["stage"]: row for row in json.loads(read_text(path))}
    except (json.JSONDecodeError, KeyError, TypeError):
        return {}


@dataclass(frozen=True)
class Gains:
    """Gains of a plan's stages as `covid-cmsf cotrain` prints them, and done stages that lack the answers for it."""

    rows: list[Row]
    unanswered: list[str]


def read_plan_gains(plan: PlanRun) -> Gains:
    """Compute the gains of the stages that are done, from their answers; none for a single run."""
    if plan.config is None:
        return Gains([], [])
    pairs = gain_pairs([(stage.spec, stage.modality or "") for stage in plan.first_seed.stages])
    compared = {name for pair in pairs for name in (pair.stage, pair.over)}
    runs: list[_StageAnswers] = []
    unanswered: dict[str, None] = {}
    for one in plan.seeds:
        for stage in one.stages:
            if stage.name not in compared or stage.result.get("r1") is None:
                continue
            path = stage.folder / ANSWERS_FILE
            if path.is_file():
                result = tuple((name, stage.result[name]) for name in METRICS)
                runs.append((stage.name, one.split or "", one.seed, stage.folder, file_stamp(path), result))
            else:
                unanswered[stage.name] = None
    return Gains(_compute_gains(tuple(pairs), tuple(runs)), list(unanswered))


_StageAnswers = tuple[str, str, int | None, Path, tuple[int, int], tuple[tuple[str, float], ...]]


@lru_cache(maxsize=16)  # a live report asks every few seconds
def _compute_gains(pairs: tuple[Pair, ...], runs: tuple[_StageAnswers, ...]) -> list[Row]:
    answers: dict[str, dict[str, list[SeedAnswers]]] = {}
    for name, split, seed, folder, _, result in runs:
        own = read_answers(folder, dict(result))
        if own is not None:
            answers.setdefault(name, {}).setdefault(split, []).append(SeedAnswers(seed, own))
    return compute_gains(pairs, answers)


# Layout of the graph: a column per step, a lane per modality, rounds next to the neighboring lane


@dataclass(frozen=True)
class Node:
    """A stage at (column, row); rows count from the top over all lanes."""

    stage: str
    column: int
    row: int
    lane: int


@dataclass(frozen=True)
class Edge:
    """From one stage to another; `kind` is init or guide."""

    start: str
    end: str
    kind: str


@dataclass(frozen=True)
class Layout:
    """Positions of all stages; `lanes` has (modality, number of rows)."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    lanes: tuple[tuple[str, int], ...]
    num_columns: int


def plan_layout(stages: Sequence[StageRun]) -> Layout:
    """Place stages without dependencies in column 0, others one to the right of their last dependency.

    Rounds are at the bottom of the first lane and at the top of all others, so that guide edges cross no other stage.
    """
    columns: dict[str, int] = {}
    for stage in stages:
        needs = [name for name in (stage.spec.init, *stage.spec.guides) if name in columns]
        columns[stage.name] = 1 + max((columns[name] for name in needs), default=-1)
    lanes = list(dict.fromkeys(stage.modality or "" for stage in stages))
    nodes: list[Node] = []
    heights: list[tuple[str, int]] = []
    top = 0
    for lane, name in enumerate(lanes):
        lane_stages = [stage for stage in stages if (stage.modality or "") == name]
        rows = _assign_rows([(columns[stage.name], _row_priority(stage)) for stage in lane_stages])
        height = 1 + max(rows)
        for stage, row in zip(lane_stages, rows, strict=True):
            final_row = height - 1 - row if lane == 0 and len(lanes) > 1 else row
            nodes.append(Node(stage.name, columns[stage.name], top + final_row, lane))
        heights.append((name, height))
        top += height
    edges = [Edge(stage.spec.init, stage.name, "init") for stage in stages if stage.spec.init in columns]
    edges += [Edge(guide, stage.name, "guide") for stage in stages for guide in stage.spec.guides if guide in columns]
    return Layout(tuple(nodes), tuple(edges), tuple(heights), 1 + max(columns.values()))


def _row_priority(stage: StageRun) -> int:
    """Rounds have row 0; pretraining and controls come next, baselines last."""
    return {"round": 0, "pretrain": 1, "control": 1, "baseline": 2}[stage.kind]


def _assign_rows(cells: Sequence[tuple[int, int]]) -> list[int]:
    """Return a free row for each (column, smallest row)."""
    lowest = min(rank for _, rank in cells)
    taken: set[tuple[int, int]] = set()
    rows = [0] * len(cells)
    for index in sorted(range(len(cells)), key=lambda i: cells[i][1]):
        column, row = cells[index][0], cells[index][1] - lowest
        while (column, row) in taken:
            row += 1
        taken.add((column, row))
        rows[index] = row
    return rows
