"""`covid-cmsf submit` and `status`, and the options of commands that run on a cluster."""

import hashlib
import inspect
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from covid_cmsf import exit_codes
from covid_cmsf.cli.options import Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covid_cmsf.engines.jobs import Job, JobState, Resources

CLUSTER_PANEL = "On a cluster"
EngineName = Literal["local", "slurm", "ray"]
ClusterName = Literal["slurm", "ray"]
Engine = Annotated[
    EngineName,
    typer.Option("--engine", help="Where it runs: here, or as jobs of a cluster.", rich_help_panel=CLUSTER_PANEL),
]
Copies = Annotated[
    int,
    typer.Option(
        "--copies", min=1, help="Jobs that share the work (preprocess), or do the same.", rich_help_panel=CLUSTER_PANEL
    ),
]
JobFolder = Annotated[
    Path, typer.Option("--job-folder", help="Where jobs/ is made, for scripts and logs.", rich_help_panel=CLUSTER_PANEL)
]
JobCpus = Annotated[int, typer.Option("--job-cpus", min=1, help="Cores per job.", rich_help_panel=CLUSTER_PANEL)]
JobGpus = Annotated[int, typer.Option("--job-gpus", min=0, help="GPUs per job.", rich_help_panel=CLUSTER_PANEL)]
Sbatch = Annotated[
    str,
    typer.Option(
        "--sbatch",
        help="More options of sbatch: '--partition=gpu --time=1-0 --mem=32G'.",
        show_default=False,
        rich_help_panel=CLUSTER_PANEL,
    ),
]
Detach = Annotated[
    bool,
    typer.Option(
        "--detach", help="Slurm: submit and end; `covid-cmsf status` shows the jobs.", rich_help_panel=CLUSTER_PANEL
    ),
]


def make_resources(cpus: int, gpus: int, sbatch: str) -> "Resources":
    """Return the resources of a job, from the options of a command."""
    from covid_cmsf.engines.jobs import Resources

    return Resources(cpus=cpus, gpus=gpus, sbatch=tuple(shlex.split(sbatch)))


def run_jobs_and_show(engine: str, jobs: "Sequence[Job]", folder: Path, resources: "Resources", *, detach: bool) -> int:
    """Run jobs on a cluster, print every change of a state, and return an exit code."""
    from covid_cmsf.engines import run_jobs
    from covid_cmsf.training.signals import stop_request

    shown: dict[str, str] = {}
    console = Console(stderr=True)

    def show(states: "dict[str, JobState]") -> None:
        for name, one in states.items():
            if shown.get(name) != one.state:
                shown[name] = one.state
                detail = f" ({one.detail}; {one.log})" if one.state in ("failed", "lost") else ""
                console.print(f"{name}: {one.state}{detail}", markup=False, highlight=False, soft_wrap=True)

    with stop_request() as stop:
        return run_jobs(engine, jobs, folder, resources, stop=stop, detach=detach, show=show)


def run_plan_jobs(
    engine: str, find_jobs: "Callable[[], Sequence[Job]]", folder: Path, resources: "Resources", *, detach: bool
) -> None:
    """Run what is left of a plan on a cluster; return if all is done, else end the command.

    What is not seen as done afterwards would be trained by this process: results may be late on a shared disk.
    """
    jobs = find_jobs()
    code = run_jobs_and_show(engine, jobs, folder, resources, detach=detach) if jobs else exit_codes.SUCCESS
    if detach or code not in (exit_codes.SUCCESS, exit_codes.SKIPPED_ITEMS):
        Console().print(f"covid-cmsf status {folder}", markup=False, highlight=False)
        raise typer.Exit(code)
    left = find_jobs() if jobs else []
    if left:
        raise RuntimeError(
            f"the jobs ended well, but their results are not in {folder} as this machine sees it "
            f"({', '.join(job.name for job in left)}); if the disk is slow to show files, repeat the command later"
        )


def submit(
    engine: Annotated[ClusterName, typer.Argument(help="slurm or ray.", show_default=False)],
    command: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND", help="The command, after two dashes.", show_default=False)
    ],
    copies: Copies = 1,
    folder: JobFolder = Path(),
    job_cpus: JobCpus = 1,
    job_gpus: JobGpus = 0,
    sbatch: Sbatch = "",
    detach: Detach = False,
) -> None:
    """Run any command as a job of a cluster. Typed again while its job is in the queue, it waits for that one.

    \b
    covid-cmsf submit slurm --copies 8 --sbatch '--time=4:00:00' -- preprocess VIDEOS --out STORE
    covid-cmsf submit slurm --job-gpus 1 -- extract RUN STORE --out features.safetensors
    RAY_ADDRESS=head:6379 covid-cmsf submit ray -- search index --clips STORE --weights RUN --out INDEX
    """
    if command[0] == "submit":
        raise ValueError("submit cannot submit itself")
    _submit(engine, command, copies, folder, make_resources(job_cpus, job_gpus, sbatch), detach=detach)


def _submit(
    engine: str, command: "Sequence[str]", copies: int, folder: Path, resources: "Resources", *, detach: bool
) -> None:
    from covid_cmsf.engines.jobs import Job

    name = f"{command[0]}-{hashlib.sha256(json.dumps(command).encode()).hexdigest()[:8]}"
    jobs = [Job(name, tuple(command))]
    if copies > 1:
        jobs = [Job(f"{name}-{number}", tuple(command), copy=number) for number in range(1, copies + 1)]
    raise typer.Exit(run_jobs_and_show(engine, jobs, folder, resources, detach=detach))


def with_engine(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of a cluster: with --engine, its own command line is submitted without them."""
    added = {
        "engine": (Engine, "local"),
        "copies": (Copies, 1),
        "job_cpus": (JobCpus, 1),
        "job_gpus": (JobGpus, 0),
        "sbatch": (Sbatch, ""),
        "job_folder": (JobFolder, Path()),
        "detach": (Detach, False),
    }

    @wraps(function)
    def run(*args: Any, **values: Any) -> None:
        chosen = {name: values.pop(name) for name in added}
        given = {name: chosen[name] != default for name, (_, default) in added.items() if name != "engine"}
        check_engine(chosen["engine"], **given)
        if chosen["engine"] == "local":
            function(*args, **values)
            return
        resources = make_resources(chosen["job_cpus"], chosen["job_gpus"], chosen["sbatch"])
        command = without_options(sys.argv[1:], [f"--{name.replace('_', '-')}" for name in added])
        _submit(chosen["engine"], command, chosen["copies"], chosen["job_folder"], resources, detach=chosen["detach"])

    signature = inspect.signature(function)
    extra = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
        for name, (annotation, default) in added.items()
    ]
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values(), *extra])  # type: ignore[attr-defined]
    run.__annotations__ = {**function.__annotations__, **{name: annotation for name, (annotation, _) in added.items()}}
    return run


def check_engine(engine: str, **given: bool) -> None:
    """Raise ValueError if options of a cluster were given where the command runs here."""
    if engine != "local":
        return
    if found := sorted(f"--{name.replace('_', '-')}" for name, is_given in given.items() if is_given):
        raise ValueError(f"{', '.join(found)}: only with --engine slurm or --engine ray")


def without_options(command: "Sequence[str]", names: "Sequence[str]") -> list[str]:
    """Return a command line without options of these names and their values; --detach has none."""
    kept: list[str] = []
    words = iter(command)
    for word in words:
        if word == "--":
            return [*kept, word, *words]
        name, equals, _ = word.partition("=")
        if name not in names:
            kept.append(word)
        elif not equals and name != "--detach":
            next(words, None)
    return kept


def status(
    folder: Annotated[Path, typer.Argument(help="Folder of a plan, or one with jobs/.", show_default=False)],
    as_json: Json = False,
) -> None:
    """Show the state of a plan's stages, wherever they run: epochs, results, errors, jobs and their logs.

    \b
    covid-cmsf status runs/demo
    covid-cmsf status .             # Slurm jobs of preprocess, extract, ... that were submitted here
    """
    from covid_cmsf.cotrain.status import plan_status

    stages = plan_status(folder)
    if as_json:
        print(json.dumps([asdict(one) for one in stages], indent=1, default=str))
        return
    table = Table("stage", "state", "epoch", "", "job")
    for one in stages:
        epoch = "" if one.epoch is None else str(one.epoch)
        table.add_row(one.id, one.state, epoch, one.detail, one.job.job_id if one.job is not None else "")
    console = Console()
    console.print(table)
    if any(one.job is not None for one in stages):
        console.print(f"logs: {folder / 'jobs'}/*.log", markup=False, highlight=False)
