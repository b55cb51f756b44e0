"""Jobs as tasks of a Ray cluster.

A task whose node dies is started again on another one, and resumes. The jobs end with the command that started them.
The folder of the jobs and the clips must be on a disk that all nodes see, and the toolkit installed on each.
"""

import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from covid_cmsf import exit_codes
from covid_cmsf.engines.jobs import (
    FINISHED,
    Job,
    JobState,
    Resources,
    check_jobs,
    ended_state,
    exit_code_of,
    job_file,
    write_job,
)
from covid_cmsf.engines.supervise import supervise
from covid_cmsf.training.signals import SIGNALS, StopRequest

logger = logging.getLogger(__name__)
POLL = 2.0  # seconds
NEED_FAILED = -1  # instead of an exit code: a job that this one needs did not succeed


class Interrupted(Exception):
    """The job was asked to stop and has saved: Ray starts it again."""


def run_on_ray(
    jobs: Sequence[Job],
    folder: Path,
    resources: Resources,
    *,
    stop: StopRequest,
    detach: bool = False,
    show: Callable[[dict[str, JobState]], None] = lambda states: None,
) -> int:
    """Run the jobs on the cluster of RAY_ADDRESS, or the one that this machine belongs to; return an exit code.

    A signal stops the jobs; the same command resumes them.
    """
    check_jobs(jobs)
    if detach:
        raise ValueError("--detach needs --engine slurm: jobs of Ray end with the command that started them")
    if resources.sbatch:
        raise ValueError("--sbatch needs --engine slurm")
    ray = _import_ray()
    folder = folder.absolute()
    try:
        ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=False, logging_level=logging.WARNING)
    except ConnectionError as error:
        raise ValueError(f"--engine ray: no cluster found ({error}); set RAY_ADDRESS, or `ray start --head`") from None
    for number in SIGNALS:  # Ray has put its own handlers in the place of ours
        signal.signal(number, stop.handle)
    try:
        return _run(ray, jobs, folder, resources, stop, show)
    finally:
        ray.shutdown()


def _import_ray() -> Any:
    try:
        import ray
    except ImportError:
        raise ValueError("--engine ray needs Ray: pip install 'covid-cmsf[ray]'") from None
    return ray


def _run(
    ray: Any,
    jobs: Sequence[Job],
    folder: Path,
    resources: Resources,
    stop: StopRequest,
    show: Callable[[dict[str, JobState]], None],
) -> int:
    options = {"num_cpus": resources.cpus, "num_gpus": resources.gpus}
    work = ray.remote(max_retries=-1, retry_exceptions=[Interrupted], **options)(_job_task)
    refs: dict[str, Any] = {}
    for job in jobs:
        write_job(folder, job, engine="ray")
        needed = [refs[name] for name in job.needs]
        refs[job.name] = work.options(name=job.name).remote(str(Path.cwd()), str(folder), job.name, *needed)
    left = dict(refs)
    while left:
        ended, _ = ray.wait(list(left.values()), num_returns=len(left), timeout=POLL, fetch_local=False)
        left = {name: ref for name, ref in left.items() if ref not in ended}
        show(ray_states(folder, refs))
        if stop.asked:
            for ref in left.values():
                ray.cancel(ref)
            ray.wait(list(left.values()), num_returns=len(left), timeout=120, fetch_local=False)
            return exit_codes.INTERRUPTED
    for name, ref in refs.items():
        try:
            ray.get(ref)
        except ray.exceptions.RayError as error:
            logger.error("job %s: %s", name, error)
    return exit_code_of(ray_states(folder, refs).values())


def _job_task(cwd: str, folder: str, name: str, *needed: int) -> int:
    """Run in a worker of Ray; `needed` are the exit codes of the jobs that this one needs."""
    if any(code not in FINISHED for code in needed):
        return NEED_FAILED
    os.chdir(cwd)
    code, _ = supervise(Path(folder), name)
    if code == exit_codes.INTERRUPTED:
        raise Interrupted
    return code


def ray_states(folder: Path, refs: dict[str, Any]) -> dict[str, JobState]:
    """Return the states of the jobs, by name, as far as their files tell them."""
    states = {}
    for name in refs:
        log = job_file(folder, name, "log")
        running = JobState("running" if log.is_file() else "pending", "", log)
        states[name] = ended_state(folder, name, "") or running
    return states
