"""Jobs of a cluster and their files.

FOLDER/jobs/
  NAME.json   the command, written when the job is submitted
  NAME.sh     Slurm: the batch script
  NAME.id     Slurm: the job's number
  NAME.log    what the command prints; later starts append
  NAME.exit   the exit code, once the command has ended for good
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covid_cmsf import exit_codes
from covid_cmsf.files import read_text, write_text_atomic

FINISHED = (exit_codes.SUCCESS, exit_codes.SKIPPED_ITEMS)


@dataclass(frozen=True)
class Job:
    """A command of this toolkit, without the program's name. `needs` names jobs that must succeed before."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()
    copy: int = 0  # of several jobs with one command, whose names end in -1, -2, ...: which one; 0: the only one

    @property
    def group(self) -> str:
        """The name that the copies of a command share; a job without copies is a group of its own."""
        return self.name.removesuffix(f"-{self.copy}") if self.copy else self.name


@dataclass(frozen=True)
class Resources:
    """What every job gets. `sbatch` are more options of sbatch, as one types them."""

    cpus: int = 1
    gpus: int = 0
    sbatch: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobState:
    """State of a job: pending, running, done, failed, or lost (it ended without a result: canceled, out of time).

    It is unknown where there is no scheduler to ask.
    """

    state: str
    job_id: str
    log: Path
    detail: str = ""  # why it waits, or its exit code
    exit_code: int | None = None  # of a job that is done or failed


def check_jobs(jobs: Sequence[Job]) -> None:
    """Raise ValueError if names are not unique or a job needs a later or unknown one."""
    seen: set[str] = set()
    for job in jobs:
        if job.name in seen:
            raise ValueError(f"two jobs have the name {job.name!r}")
        if unknown := [name for name in job.needs if name not in seen]:
            raise ValueError(f"job {job.name!r} needs {unknown[0]!r}, which is not an earlier job")
        seen.add(job.name)


def job_file(folder: Path, name: str, kind: str) -> Path:
    """Return a file of a job: `kind` is json, sh, id, log or exit."""
    return folder / "jobs" / f"{name.replace('/', '.')}.{kind}"


def write_job(folder: Path, job: Job, **values: Any) -> None:
    """Record a job that is submitted."""
    record = {**asdict(job), **values}
    path = job_file(folder, job.name, "json")
    path.parent.mkdir(parents=True, exist_ok=True)
    job_file(folder, job.name, "exit").unlink(missing_ok=True)
    write_text_atomic(path, json.dumps(record, indent=1) + "\n")


def read_jobs(folder: Path) -> list[dict[str, Any]]:
    """Return the records of all jobs of a folder, in the order in which they were submitted."""
    paths = sorted((folder / "jobs").glob("*.json"), key=lambda path: (path.stat().st_mtime_ns, path.name))
    return [json.loads(read_text(path)) for path in paths]


def read_exit_code(folder: Path, name: str) -> int | None:
    """Return the exit code of a job that has ended; None before."""
    path = job_file(folder, name, "exit")
    try:
        return int(read_text(path))
    except FileNotFoundError:
        return None


def ended_state(folder: Path, name: str, job_id: str) -> JobState | None:
    """Return the state of a job that has ended for good; None if it has not."""
    code = read_exit_code(folder, name)
    if code is None:
        return None
    state = "done" if code in FINISHED else "failed"
    return JobState(state, job_id, job_file(folder, name, "log"), f"exit code {code}", code)


def exit_code_of(states: Iterable[JobState]) -> int:
    """Return the exit code for all jobs together."""
    states = list(states)
    if any(one.state != "done" for one in states):
        return exit_codes.FAILED
    skipped = any(one.exit_code == exit_codes.SKIPPED_ITEMS for one in states)
    return exit_codes.SKIPPED_ITEMS if skipped else exit_codes.SUCCESS
