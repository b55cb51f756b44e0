"""Run a plan: load it, execute its stages, write its tables."""

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from covid_cmsf import exit_codes
from covid_cmsf.clips.acceptance import ACCEPTED
from covid_cmsf.config import load_config
from covid_cmsf.cotrain.executor import Execution, execute, select_stages, stage_states
from covid_cmsf.cotrain.gains import plan_gains
from covid_cmsf.cotrain.graph import Stage, build_graph, repetition_name
from covid_cmsf.cotrain.plan import PlanConfig, check_sections, refuse_old_plan
from covid_cmsf.cotrain.preflight import PlanClips, check_plan, leave_out_labels
from covid_cmsf.cotrain.reuse import finished_stages, reuse_stages
from covid_cmsf.cotrain.stage import read_stage_result, run_stage, videos_fingerprint
from covid_cmsf.cotrain.table import Row, mean_over_seeds, table_rows, write_tables
from covid_cmsf.engines.jobs import Job
from covid_cmsf.files import read_text, remove_temporary, write_text_atomic
from covid_cmsf.locks import join_lock, lock_file
from covid_cmsf.preflight import Problem, raise_problems
from covid_cmsf.training.signals import stop_request

logger = logging.getLogger(__name__)
ShowStates = Callable[[list[Stage], dict[str, str]], None]


def load_plan(path: Path, overrides: list[str]) -> PlanConfig:
    """Load a plan with `key=value` overrides; its training sections are checked here, before any stage is built."""
    plan = load_config(PlanConfig, path, overrides)
    check_sections(plan, origin=str(path))
    return plan


def build_graphs(plan: PlanConfig, out: Path, *, plan_dir: Path) -> list[list[Stage]]:
    """Return one graph per split and seed, or a single one for a plan without."""
    return [
        build_graph(plan, out / repetition_name(seed, split), plan_dir=plan_dir, seed=seed, split=split)
        for split, seed in plan.repetitions
    ]


def run_plan(
    plan: PlanConfig,
    out: Path,
    *,
    plan_dir: Path,
    only: str | None = None,
    start: str | None = None,
    parallel: int = 1,
    num_processes: int = 1,
    reuse: Sequence[Path] = (),
    show: ShowStates = lambda stages, states: None,
) -> tuple[int, list[Row]]:
    """Execute the stages that are not done; return an exit code and the rows of the table, also written to `out`.

    `parallel` stages run at a time, each with `num_processes` processes; `show` is called when a state changes.
    Finished stages with the same settings and clips in the folders `reuse` are copied instead of trained.
    """
    slots = device_slots(parallel, num_processes)
    finished = finished_stages(reuse)
    plan, graphs = prepare_plan(plan, out, plan_dir=plan_dir, only=only, start=start, parallel=parallel)
    out.mkdir(parents=True, exist_ok=True)
    stages = [stage for graph in graphs for stage in graph]
    selected = select_stages(stages, only=only, start=start)
    with join_plan(plan, out), stop_request() as stop:
        reuse_stages(stages, finished)
        execution = Execution(
            work=partial(run_stage, num_processes=num_processes, num_slots=parallel),
            slots=slots,
            stop=stop,
            on_change=partial(show, stages),
        )
        code = execute(stages, selected, execution)
    if warn_of_skipped_videos(graphs) and code == exit_codes.SUCCESS:
        code = exit_codes.SKIPPED_ITEMS
    with lock_file(out / ".table.lock", wait=True):  # the last of several processes sees all results
        return code, write_results(plan, graphs, out)


def plan_jobs(
    plan: PlanConfig,
    out: Path,
    command: Sequence[str],
    *,
    plan_dir: Path,
    only: str | None = None,
    start: str | None = None,
) -> list[Job]:
    """Return one job of a cluster per stage to run: the `command` of the whole plan, with `--only STAGE`.

    All problems that can be seen here are raised here, before anything waits in a queue.
    """
    plan, graphs = prepare_plan(plan, out, plan_dir=plan_dir, only=only, start=start)
    out.mkdir(parents=True, exist_ok=True)
    with join_plan(plan, out):  # for `covid-cmsf status`, until the first job starts
        pass
    stages = [stage for graph in graphs for stage in graph]
    states = stage_states(stages, select_stages(stages, only=only, start=start))
    waiting = {name for name, state in states.items() if state == "waiting"}
    return [
        Job(
            stage.id,
            (*command, f"--only={stage.id}"),
            needs=tuple(name for name in stage.needed_ids if name in waiting),
        )
        for stage in stages
        if stage.id in waiting
    ]


@contextmanager
def join_plan(plan: PlanConfig, out: Path) -> Iterator[None]:
    """Work on the plan in `out`, alone or beside other processes; ValueError if they run another plan there."""
    path, text = out / "plan.json", plan.model_dump_json(indent=1) + "\n"
    folders = {out, *(out / repetition_name(seed, split) for split, seed in plan.repetitions)}

    def begin() -> None:
        with lock_file(out / ".table.lock", wait=True):  # a process that is finished may still write its table
            for folder in folders:
                remove_temporary(folder)
        write_text_atomic(path, text)

    def check() -> None:
        if read_text(path) != text:
            raise ValueError(f"another process is running a plan with other settings in {out}")

    with join_lock(out / ".lock", first=begin, check=check):
        yield


def warn_of_skipped_videos(graphs: list[list[Stage]]) -> bool:
    """Say which stages lack features of some videos; return whether there are any."""
    found = False
    for stage in (stage for stages in graphs for stage in stages):
        listed = (read_stage_result(stage) or {}).get("skipped", [])
        skipped = [entry for entry in listed if not entry[2].startswith(ACCEPTED)]
        if skipped:
            found = True
            video_id, subset, reason = skipped[0]
            count = sum(entry[1] == stage.evaluation.query for entry in skipped)
            logger.warning(
                "stage %s: %d videos have no result (%d of subset %s), for example %s (%s): %s; its numbers are of the "
                "others",
                *(stage.name, len(skipped), count, stage.evaluation.query, video_id, subset, reason),
            )
    return found


def prepare_plan(
    plan: PlanConfig,
    out: Path,
    *,
    plan_dir: Path,
    only: str | None = None,
    start: str | None = None,
    parallel: int = 1,
) -> tuple[PlanConfig, list[list[Stage]]]:
    """Return the plan as far as its clips have labels for it, and its graphs; raise all problems of stages to run."""
    clips = PlanClips()
    check_folder(out)
    plan = leave_out_labels(plan, clips)
    videos_fingerprint.cache_clear()  # files may have changed since this process ran a plan
    graphs = build_graphs(plan, out, plan_dir=plan_dir)
    selected = select_stages([stage for stages in graphs for stage in stages], only=only, start=start)
    problems: list[Problem] = []
    for stages in graphs:
        states = stage_states(stages, selected)
        problems += check_plan(stages, states, clips, parallel=parallel)
    raise_problems(problems)
    return plan, graphs


def check_folder(out: Path) -> None:
    """Raise ValueError if the folder holds a plan of version 0.1.0: its results would be moved away and redone."""
    path = out / "plan.json"
    if path.is_file():
        try:
            values = json.loads(read_text(path))
        except ValueError:  # it is written anew
            return
        refuse_old_plan(values if isinstance(values, dict) else {}, path)


def write_results(plan: PlanConfig, graphs: list[list[Stage]], out: Path) -> list[Row]:
    """Write the tables of every seed and split, of their means, and the gains; return the rows of the means."""
    tables = [table_rows(stages, chance="chance" in plan.baselines) for stages in graphs]
    repetitions = plan.repetitions
    for (split, seed), rows in zip(repetitions, tables, strict=True) if plan.seeds else ():
        write_tables(out / repetition_name(seed, split), rows)
    by_split = [
        [rows for (split, _), rows in zip(repetitions, tables, strict=True) if split == one]
        for one in dict.fromkeys(split for split, _ in repetitions)
    ]
    for name, own in zip(plan.splits, by_split, strict=False):
        write_tables(out / repetition_name(None, name), mean_over_seeds([own]) if plan.seeds else own[0])
    rows = mean_over_seeds(by_split) if len(tables) > 1 or plan.seeds else tables[0]
    write_tables(out, rows, gains=plan_gains(graphs, repetitions))
    return rows


def device_slots(parallel: int, num_processes: int) -> list[str]:
    """Return one slot per parallel stage: `cuda:0,1` (GPUs that no other slot has), or `cpu#1` without GPUs."""
    gpus = torch.cuda.device_count()
    if parallel < 1 or num_processes < 1:
        raise ValueError(f"--parallel {parallel} --processes {num_processes}: both must be at least 1")
    if gpus == 0:
        return [f"cpu#{number}" for number in range(1, parallel + 1)]
    if parallel * num_processes > gpus:
        raise ValueError(
            f"--parallel {parallel} --processes {num_processes}: every process needs a GPU, and there are {gpus}"
        )
    numbers = [range(first, first + num_processes) for first in range(0, parallel * num_processes, num_processes)]
    return ["cuda:" + ",".join(map(str, gpu_ids)) for gpu_ids in numbers]
