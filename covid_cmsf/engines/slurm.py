"""Jobs of a Slurm cluster: batch scripts with dependencies, given to sbatch.

Slurm keeps the order, so nothing needs to run on the login node after the jobs are submitted. The folder of the jobs,
the clips and the environment of this Python must be on a disk that all nodes see.
"""

import logging
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from covid_cmsf import exit_codes
from covid_cmsf.engines.jobs import (
    Job,
    JobState,
    Resources,
    check_jobs,
    ended_state,
    exit_code_of,
    job_file,
    read_jobs,
    write_job,
)
from covid_cmsf.files import read_text, write_text_atomic
from covid_cmsf.training.signals import StopRequest

logger = logging.getLogger(__name__)
POLL = 5.0  # seconds between two looks at the queue
WARNING_SECONDS = 180  # SIGUSR1 comes this long before the time limit
ACTIVE = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT", "SUSPENDED")
SCRIPT = """\
#!/bin/bash
{options}exec {python} -m covid_cmsf.engines.supervise {folder} {job}
"""


def run_on_slurm(
    jobs: Sequence[Job],
    folder: Path,
    resources: Resources,
    *,
    stop: StopRequest,
    detach: bool = False,
    show: Callable[[dict[str, JobState]], None] = lambda states: None,
) -> int:
    """Submit the jobs that are not in the queue yet, and wait for all unless `detach`; return an exit code.

    A signal ends the waiting, not the jobs.
    """
    folder = folder.absolute()
    submit_jobs(jobs, folder, resources)
    names = {job.name for job in jobs}
    states: dict[str, JobState] = {}
    while not detach:
        try:
            states = {name: one for name, one in slurm_states(folder).items() if name in names}
        except RuntimeError as error:  # Slurm's controller is restarted, for example: the jobs go on
            logger.warning("%s; asking again", error)
        show(states)
        if states and all(one.state in ("done", "failed", "lost") for one in states.values()):
            return exit_code_of(states.values())
        if stop.asked:
            ids = " ".join(one.job_id for one in states.values() if one.state in ("pending", "running"))
            logger.info("the jobs go on without this command; to cancel them: scancel %s", ids)
            return exit_codes.INTERRUPTED
        _sleep(stop)
    return exit_codes.SUCCESS


def _sleep(stop: StopRequest) -> None:
    deadline = time.monotonic() + POLL
    while time.monotonic() < deadline and not stop.asked:
        time.sleep(0.2)


def submit_jobs(jobs: Sequence[Job], folder: Path, resources: Resources) -> None:
    """Give the jobs to sbatch, copies of a command as one array; none that is pending or running already."""
    check_jobs(jobs)
    if any(word.partition("=")[0] in ("--array", "-a") for word in resources.sbatch):
        raise ValueError("--sbatch=--array is not possible: --copies N makes an array of N tasks")
    if shutil.which("sbatch") is None or shutil.which("squeue") is None:
        raise ValueError("--engine slurm needs Slurm's sbatch and squeue, which are not on this machine")
    queued = {name: one.job_id for name, one in slurm_states(folder).items() if one.state in ("pending", "running")}
    check_commands(jobs, folder, queued)
    ids = {job.name: queued[job.name] for job in jobs if job.name in queued}
    for name, job_id in ids.items():
        logger.info("job %s is in the queue already: %s", name, job_id)
    for _, members in groupby((job for job in jobs if job.name not in queued), key=lambda job: job.group):
        ids |= _submit(list(members), folder, resources, ids)


def _submit(jobs: Sequence[Job], folder: Path, resources: Resources, ids: Mapping[str, str]) -> dict[str, str]:
    """Give one job, or copies of one command as an array, to sbatch; return {name: number}."""
    script = job_file(folder, jobs[0].group, "sh")
    script.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomic(script, batch_script(jobs, folder, resources))
    for job in jobs:
        write_job(folder, job, engine="slurm", id="")  # the job may start before sbatch has returned
    needed = [ids[name] for name in jobs[0].needs if name in ids]
    dependency = [f"--dependency=afterok:{':'.join(needed)}"] if needed else []
    number = _slurm("sbatch", "--parsable", *dependency, str(script)).strip().partition(";")[0]
    submitted = {job.name: f"{number}_{job.copy}" if job.copy else number for job in jobs}
    for name, job_id in submitted.items():
        write_text_atomic(job_file(folder, name, "id"), f"{job_id}\n")
        logger.info("job %s submitted: %s", name, job_id)
    return submitted


def check_commands(jobs: Sequence[Job], folder: Path, queued: Mapping[str, str]) -> None:
    """Raise ValueError if a job that is `queued`, {name: number}, was submitted with another command."""
    commands = {record["name"]: tuple(record["command"]) for record in read_jobs(folder)}
    for job in jobs:
        if job.name in queued and commands[job.name] != job.command:
            raise ValueError(
                f"job {job.name} is in the queue with another command (covid-cmsf {shlex.join(commands[job.name])}); "
                f"wait for it, or scancel {queued[job.name]} first"
            )


def batch_script(jobs: Sequence[Job], folder: Path, resources: Resources) -> str:
    """Return the batch script of one job, or of copies of one command: an array whose tasks have their numbers."""
    group, is_array = jobs[0].group, jobs[0].copy > 0
    # In options Slurm writes the number of the task, in the script the shell does.
    log = job_file(folder, f"{group}-%a" if is_array else group, "log")
    options = [
        f"--job-name=covid-cmsf:{group}",
        f"--output={log}",
        "--open-mode=append",
        f"--chdir={Path.cwd()}",
        f"--cpus-per-task={resources.cpus}",
        "--requeue",
        "--kill-on-invalid-dep=yes",
        f"--signal=B:USR1@{WARNING_SECONDS}",
        *([f"--gres=gpu:{resources.gpus}"] if resources.gpus else []),
        *([f"--array={_numbers([job.copy for job in jobs])}"] if is_array else []),
    ]
    lines = [f"#SBATCH {shlex.quote(option)}" for option in options]
    for word in resources.sbatch:
        if word.startswith("-"):
            lines.append(f"#SBATCH {shlex.quote(word)}")
        else:  # the value of the option before: `-p gpu`
            lines[-1] += f" {shlex.quote(word)}"
    return SCRIPT.format(
        options="".join(f"{line}\n" for line in lines),
        python=shlex.quote(sys.executable),
        folder=shlex.quote(str(folder)),
        job=shlex.quote(group) + ('-"$SLURM_ARRAY_TASK_ID"' if is_array else ""),
    )


def _numbers(copies: Sequence[int]) -> str:
    """Return numbers as sbatch wants them: 1-16, or 2,5 if the others are not to run again."""
    first, last = copies[0], copies[-1]
    return f"{first}-{last}" if len(copies) == last - first + 1 else ",".join(map(str, copies))


def slurm_states(folder: Path) -> dict[str, JobState]:
    """Return the states of the folder's Slurm jobs, by name."""
    records = [record for record in read_jobs(folder) if record["engine"] == "slurm"]
    states: dict[str, JobState] = {}
    waiting: dict[str, str] = {}  # {name: job's number, empty if it was not submitted}
    for record in records:
        name = record["name"]
        path = job_file(folder, name, "id")
        job_id = read_text(path).strip() if path.is_file() else ""
        ended = ended_state(folder, name, job_id)
        if ended is not None:
            states[name] = ended
        else:
            waiting[name] = job_id
    has_slurm = shutil.which("squeue") is not None
    queue = read_queue() if waiting and has_slurm else {}
    if waiting:
        # Reading a folder makes NFS ask the server: else a result of another machine may not be seen for half a minute.
        list((folder / "jobs").iterdir())
    for name, job_id in waiting.items():
        log = job_file(folder, name, "log")
        if job_id in queue:
            state, reason = queue[job_id]
            states[name] = JobState("pending" if state in ACTIVE else "running", job_id, log, reason)
        elif not has_slurm:
            states[name] = JobState("unknown", job_id, log, "Slurm's squeue is not on this machine")
        else:  # it may have ended between the two looks
            states[name] = ended_state(folder, name, job_id) or JobState("lost", job_id, log, "ended without a result")
    return {record["name"]: states[record["name"]] for record in records}


def read_queue() -> dict[str, tuple[str, str]]:
    """Return state and reason of the user's jobs that Slurm has in its queue, by id; that of a task is 41_3."""
    lines = _slurm("squeue", "--me", "--array", "--noheader", "--format=%i|%T|%r").splitlines()
    return {fields[0]: (fields[1], fields[2]) for fields in (line.split("|", 2) for line in lines)}


def _slurm(*command: str) -> str:
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {ended.stderr.strip() or ended.stdout.strip()}")
    return ended.stdout
