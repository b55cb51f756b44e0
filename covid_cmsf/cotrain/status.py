"""The state of a plan's stages, read from their folders: for plans that run elsewhere, or on several machines."""

import json
from dataclasses import dataclass
from pathlib import Path

from covid_cmsf.config import validate
from covid_cmsf.cotrain.graph import repetition_name
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.cotrain.rounds import expand_stages
from covid_cmsf.cotrain.stage import ERROR_FILE, STAGE_RESULT
from covid_cmsf.engines.jobs import JobState, read_jobs
from covid_cmsf.engines.slurm import slurm_states
from covid_cmsf.files import read_text
from covid_cmsf.locks import is_locked
from covid_cmsf.training.monitor import format_metrics, last_metrics


@dataclass(frozen=True)
class StageStatus:
    """State of a stage: done, running, failed, interrupted, waiting, or that of its job: pending in a queue, ..."""

    id: str
    state: str
    epoch: int | None
    detail: str  # its newest metrics, or why it failed
    job: JobState | None


def plan_status(out: Path) -> list[StageStatus]:
    """Return the state of every stage of the plan in `out`, in the order of the plan; without a plan, of its jobs."""
    path = out / "plan.json"
    if not path.is_file():
        return job_status(out)
    plan = validate(PlanConfig, json.loads(read_text(path)), origin=str(path))
    jobs = slurm_states(out) if any(record["engine"] == "slurm" for record in read_jobs(out)) else {}
    found = []
    for split, seed in plan.repetitions:
        repetition = repetition_name(seed, split)
        for spec in expand_stages(plan):
            stage_id = f"{repetition}/{spec.name}" if repetition else spec.name
            found.append(stage_status(stage_id, out / repetition / spec.name, jobs.get(stage_id)))
    return found


def job_status(folder: Path) -> list[StageStatus]:
    """Return the state of every Slurm job of a folder. Those of Ray are shown by the command that runs them."""
    jobs = slurm_states(folder)
    if not jobs:
        raise ValueError(f"{folder} is no folder of a plan (it has no plan.json), and jobs/ in it has no job of Slurm")
    return [StageStatus(name, job.state, None, job.detail, job) for name, job in jobs.items()]


def stage_status(stage_id: str, folder: Path, job: JobState | None = None) -> StageStatus:
    """Return the state of one stage."""
    metrics = last_metrics(folder / "metrics.jsonl")
    epoch, detail = (int(metrics["epoch"]) + 1, format_metrics(metrics)) if metrics else (None, "")
    if (folder / STAGE_RESULT).is_file():
        result = json.loads(read_text(folder / STAGE_RESULT))
        measured = [f"{name} {result[key]:.1f}" for key, name in (("r1", "R@1"), ("linear", "linear")) if key in result]
        return StageStatus(stage_id, "done", epoch, "  ".join(measured), job)
    if is_locked(folder.with_name(f".{folder.name}.lock")):
        return StageStatus(stage_id, "running", epoch, detail, job)
    if (folder / ERROR_FILE).is_file():
        return StageStatus(stage_id, "failed", epoch, read_text(folder / ERROR_FILE).strip(), job)
    if job is not None and job.state != "done":
        return StageStatus(stage_id, job.state, epoch, job.detail, job)
    return StageStatus(stage_id, "interrupted" if metrics else "waiting", epoch, detail, job)
