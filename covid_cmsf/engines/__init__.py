"""Where commands run: on this machine, as jobs of a Slurm cluster, or as tasks of a Ray cluster.

A job is a command line of this toolkit. Every command resumes when it is typed again, so a job that was preempted,
requeued or lost with its machine is run again by the scheduler, and goes on.
"""

from collections.abc import Callable
from typing import Any

from covid_cmsf.engines.jobs import Job, JobState, Resources
from covid_cmsf.engines.ray import run_on_ray
from covid_cmsf.engines.slurm import run_on_slurm

ENGINES: dict[str, Callable[..., int]] = {"slurm": run_on_slurm, "ray": run_on_ray}

__all__ = ["ENGINES", "Job", "JobState", "Resources", "run_jobs"]


def run_jobs(engine: str, *args: Any, **options: Any) -> int:
    """Run jobs on a cluster; see `run_on_slurm` and `run_on_ray`."""
    return ENGINES[engine](*args, **options)
