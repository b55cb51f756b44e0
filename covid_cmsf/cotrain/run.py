"""A plan from its file to its table."""

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from covid_cmsf import exit_codes
from covid_cmsf.clips import open_clips
from covid_cmsf.config import load_config
from covid_cmsf.cotrain.executor import Execution, execute, seed_dir, select_stages
from covid_cmsf.cotrain.graph import Stage, build_graph
from covid_cmsf.cotrain.plan import EvaluationConfig, PlanConfig
from covid_cmsf.cotrain.stage import run_stage
from covid_cmsf.cotrain.table import Row, mean_over_seeds, table_rows, write_tables
from covid_cmsf.files import write_text_atomic
from covid_cmsf.training.run_dir import lock_dir
from covid_cmsf.training.signals import stop_request

logger = logging.getLogger(__name__)
ShowStates = Callable[[list[Stage], dict[str, str]], None]


def load_plan(path: Path, overrides: list[str]) -> PlanConfig:
    """The plan in a file, with `key=value` changes."""
    return load_config(PlanConfig, path, overrides)


def build_graphs(plan: PlanConfig, out: Path, *, plan_dir: Path) -> list[list[Stage]]:
    """One graph, or one for each seed."""
    seeds: tuple[int | None, ...] = plan.seeds or (None,)
    return [build_graph(plan, seed_dir(out, seed), plan_dir=plan_dir, seed=seed) for seed in seeds]


def run_plan(
    plan: PlanConfig,
    out: Path,
    *,
    plan_dir: Path,
    only: str | None = None,
    start: str | None = None,
    parallel: int = 1,
    num_processes: int = 1,
    show: ShowStates = lambda stages, states: None,
) -> tuple[int, list[Row]]:
    """Does what is not done yet; returns an exit code and the table, which is also written into `out`."""
    graphs = build_graphs(plan, out, plan_dir=plan_dir)
    check_evaluation(plan.evaluation, graphs[0])
    slots = device_slots(parallel, num_processes)
    out.mkdir(parents=True, exist_ok=True)
    code = exit_codes.SUCCESS
    with lock_dir(out), stop_request() as stop:
        write_text_atomic(out / "plan.json", plan.model_dump_json(indent=1) + "\n")
        for stages in graphs:
            wanted = select_stages(stages, only=only, start=start)
            execution = Execution(
                work=partial(run_stage, num_processes=num_processes, num_slots=parallel),
                devices=slots,
                stop=stop,
                on_change=partial(show, stages),
            )
            code = max(code, execute(stages, wanted, execution))
            if stop.asked:
                break
    return code, write_results(plan, graphs, out)


def check_evaluation(evaluation: EvaluationConfig, stages: list[Stage]) -> None:
    """Other clips to measure on must be there, with their split and part, before anything is trained."""
    if evaluation.clips is not None:
        clips = open_clips(evaluation.clips)
        for split in {evaluation.split or stage.split for stage in stages}:
            clips.select(split, evaluation.query)


def write_results(plan: PlanConfig, graphs: list[list[Stage]], out: Path) -> list[Row]:
    """The tables of all seeds, and of their means."""
    tables = [table_rows(stages, chance="chance" in plan.baselines) for stages in graphs]
    if plan.seeds:
        for seed, rows in zip(plan.seeds, tables, strict=True):
            folder = seed_dir(out, seed)
            folder.mkdir(parents=True, exist_ok=True)
            write_tables(folder, rows)
    rows = mean_over_seeds(tables) if plan.seeds else tables[0]
    write_tables(out, rows)
    return rows


def device_slots(parallel: int, num_processes: int) -> list[str]:
    """Where stages run side by side: each on GPUs of its own, or, without any, so many at once on the CPU."""
    gpus = torch.cuda.device_count()
    if parallel < 1 or num_processes < 1:
        raise ValueError(f"--parallel {parallel} --processes {num_processes}: both must be at least 1")
    if gpus == 0:
        return [f"cpu#{number}" for number in range(1, parallel + 1)]
    if parallel * num_processes > gpus:
        raise ValueError(f"--parallel {parallel} --processes {num_processes}: there are {gpus} GPUs, one for each")
    numbers = [range(first, first + num_processes) for first in range(0, parallel * num_processes, num_processes)]
    return ["cuda:" + ",".join(map(str, own)) for own in numbers]
