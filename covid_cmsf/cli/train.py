"""`covid-cmsf train`, `cotrain` and `replay`."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from covid_cmsf import exit_codes
from covid_cmsf.cli import cluster
from covid_cmsf.cli.options import Config, Overrides, RunFolder

if TYPE_CHECKING:
    from covid_cmsf.training.config import TrainConfig

RUNS = Path("runs")
ClipsOption = Annotated[
    str | None,
    typer.Option("--clips", help="Clips to train on; default: as in CONFIG.", show_default=False),
]


def train(
    config: Annotated[
        str,
        typer.Argument(
            metavar="CONFIG",
            help="A name from `covid-cmsf config list`, a YAML file, or the folder of a run to resume.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    clips: ClipsOption = None,
    modality: Annotated[
        str | None,
        typer.Option(
            "--modality",
            help="rgb, flow, residual_flow, motion, residual_motion, rgbdiff, frame or audio",
            show_default=False,
        ),
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            "--epochs",
            min=1,
            help="Length of training; milestones of a step schedule move in proportion.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Videos per step, over all processes.", show_default=False),
    ] = None,
    init: Annotated[
        Path | None,
        typer.Option("--init", help="Run or weights file to start from; default: random.", show_default=False),
    ] = None,
    guide: Annotated[
        list[str] | None,
        typer.Option(
            "--guide",
            help="Run or weights file of the frozen guide, or a network by name: timm:NAME, "
            "torchvision:NAME?weights=FILE, transformers:FOLDER; may be repeated.",
            show_default=False,
        ),
    ] = None,
    out: RunFolder = None,
    cache_gb: Annotated[
        float | None,
        typer.Option("--cache-gb", min=0, help="Gigabytes of decoded clips to keep in memory.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Build everything, run two steps, print a summary, write nothing.")
    ] = False,
    accept_changes: Annotated[
        bool, typer.Option("--accept-changes", help="Resume a run although its settings were changed.")
    ] = False,
) -> None:
    """Train one encoder with CMSF, InfoNCE or another method; `covid-cmsf config list` has the names.

    The same command resumes a run that was stopped, also within an epoch. Ctrl-C, SIGTERM and SIGUSR1 finish the step,
    save, and exit with code 75.

    \b
    covid-cmsf train infonce --clips CLIPS --modality flow -o runs/infonce-flow
    covid-cmsf train cmsf --clips CLIPS --init runs/infonce-rgb --guide runs/infonce-flow
    torchrun --nproc-per-node 4 tools/train.py paper/video/infonce --clips CLIPS
    """
    chosen, name = load_run(
        config,
        overrides or (),
        clips=clips,
        modality=modality,
        epochs=epochs,
        batch_size=batch_size,
        init=init,
        guides=guide or (),
        cache_gb=cache_gb,
    )
    if dry_run:
        _print_dry_run(chosen)
        return
    from covid_cmsf.training.run import run_training

    folder = out or (Path(config) if is_run_folder(config) else RUNS / name)
    if run_training(chosen, folder, accept_changes=accept_changes) == "stopped":
        raise typer.Exit(exit_codes.INTERRUPTED)


def is_run_folder(path: str | Path) -> bool:
    """Tell whether a folder holds a run that can be resumed."""
    from covid_cmsf.training.run_dir import CONFIG_FILE

    return (Path(path) / CONFIG_FILE).is_file()


def load_run(
    config: str,
    overrides: Sequence[str] = (),
    *,
    clips: str | None = None,
    modality: str | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    init: Path | None = None,
    guides: Sequence[str | Path] = (),
    cache_gb: float | None = None,
) -> "tuple[TrainConfig, str]":
    """Return the settings of a run and its name: the file's, then these options, then `key=value` overrides."""
    from covid_cmsf.config import apply_override, config_name, find_config, read_yaml, validate
    from covid_cmsf.models.checkpoints.reader import find_checkpoint
    from covid_cmsf.training.checkpoints import Checkpoints
    from covid_cmsf.training.config import TrainConfig
    from covid_cmsf.training.run_dir import CONFIG_FILE

    if is_run_folder(config):
        Checkpoints(Path(config) / "checkpoints").check_resumable()
        path = Path(config) / CONFIG_FILE
    elif Path(config).is_dir():
        raise FileNotFoundError(f"{config} is not the folder of a run: it has no {CONFIG_FILE}")
    else:
        path = find_config("runs", config)
    values = read_yaml(path)
    options = {"clips": clips, "modality": modality, "batch_size": batch_size}
    values |= {key: value for key, value in options.items() if value is not None}
    if init is not None:
        values["init"] = str(find_checkpoint(init))
    if epochs is not None:
        _set_epochs(values, epochs)
    if cache_gb is not None:
        values.setdefault("runtime", {})["cache_gb"] = cache_gb
    if guides:
        template = (values.get("guides") or [{}])[0]
        values["guides"] = [_guide_values(template, guide) for guide in guides]
    for override in overrides:
        apply_override(values, override)
    if any(isinstance(guide, dict) and "weights" not in guide for guide in values.get("guides") or ()):
        raise ValueError(f"{config} needs a guide: --guide RUN, a run of the other modality")
    return validate(TrainConfig, values, origin=str(path)), config_name("runs", path)


def _set_epochs(values: dict[str, Any], epochs: int) -> None:
    """Set the length of training and move the milestones of a step schedule in proportion."""
    from covid_cmsf.config import validate
    from covid_cmsf.training.config import ScheduleConfig

    schedule = validate(ScheduleConfig, values.get("schedule", {}), origin="section schedule")
    changed: dict[str, Any] = {"epochs": epochs}
    if schedule.name == "step":
        changed["milestones"] = [round(milestone * epochs / schedule.epochs) for milestone in schedule.milestones]
    values["schedule"] = {**values.get("schedule", {}), **changed}


def _guide_values(template: dict[str, Any], guide: str | Path) -> dict[str, Any]:
    """Return the settings of a guide: those of the configuration, with its weights and, if unset, its modality."""
    from covid_cmsf.models import load_weights
    from covid_cmsf.models.checkpoints.reader import find_checkpoint
    from covid_cmsf.models.named_networks import named_library

    if named_library(guide) is not None:
        # What the configuration says about the guide's layer and branch is about guides that are trained here.
        kept = {key: value for key, value in template.items() if key not in ("layer", "branch")}
        return {**kept, "weights": str(guide)}
    checkpoint = find_checkpoint(guide)
    values = {**template, "weights": str(checkpoint)}
    if "modality" not in template:
        modality = load_weights(checkpoint).metadata.modality
        if modality != "unknown":  # foreign files do not say: guides.0.modality=... does
            values["modality"] = modality
    return values


def _print_dry_run(config: "TrainConfig") -> None:
    from covid_cmsf.training.dry_run import dry_run

    table = Table(show_header=False, title="dry run: nothing was written")
    for name, value in dry_run(config).entries.items():
        table.add_row(name, value)
    Console().print(table)


def replay(
    file: Annotated[Path, typer.Argument(help="A failed-step-*.pt that a run has written.", show_default=False)],
    device: Annotated[str, typer.Option("--device", help="Where to compute it: cpu, cuda, ...")] = "cpu",
) -> None:
    """Repeat a step whose loss was not finite, and name the first layer with a bad output.

    \b
    covid-cmsf replay runs/cmsf/failed-step-120.pt
    """
    from covid_cmsf.training.failures import replay as replay_step

    replayed = replay_step(file, device=device)
    table = Table(show_header=False, title=f"step {replayed.step}")
    table.add_row("loss", str(replayed.loss))
    table.add_row("first bad output", replayed.first_bad or "none: the loss itself")
    table.add_row("bad weights", ", ".join(replayed.bad_weights[:10]) or "none")
    table.add_row("bad entries in the bank", str(replayed.bad_entries))
    Console().print(table)


def cotrain(
    plan: Config,
    overrides: Overrides = None,
    clips: ClipsOption = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", help="Encoder of all stages; default: as in CONFIG.", show_default=False),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", min=1, help="Videos per step of all stages.", show_default=False),
    ] = None,
    seeds: Annotated[
        str | None,
        typer.Option("--seeds", help="Repeat everything for each: 0,1,2; default: as in CONFIG.", show_default=False),
    ] = None,
    splits: Annotated[
        str | None,
        typer.Option("--splits", help="Repeat everything per split: 2,3; default: as in CONFIG.", show_default=False),
    ] = None,
    out: RunFolder = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the stages as a graph, with cost estimates; train nothing.")
    ] = False,
    only: Annotated[
        str | None,
        typer.Option(
            "--only", help="Run only this stage: cmsf-rgb-1, or of one seed: seed-0/cmsf-rgb-1.", show_default=False
        ),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Run this stage and those after it.", show_default=False)
    ] = None,
    parallel: Annotated[
        int, typer.Option("--parallel", min=1, help="Stages at the same time, each on its own GPU.")
    ] = 1,
    num_processes: Annotated[int, typer.Option("--processes", min=1, help="Processes per stage, under torchrun.")] = 1,
    reuse: Annotated[
        list[Path] | None,
        typer.Option(
            "--reuse",
            help="Folder of another plan: finished stages with the same settings and clips are copied, not trained. "
            "May be repeated.",
            show_default=False,
        ),
    ] = None,
    engine: cluster.Engine = "local",
    job_cpus: cluster.JobCpus = 1,
    job_gpus: cluster.JobGpus = 0,
    sbatch: cluster.Sbatch = "",
    detach: cluster.Detach = False,
) -> None:
    """Run co-training rounds: every stage trains one network, guided by a frozen one of the other modality.

    It works like a build system: finished stages are kept, a changed setting repeats its stage and those that depend on
    it, a stopped plan resumes. After each stage its features are evaluated; the table is printed and written to
    table.md, table.csv and table.json.

    \b
    covid-cmsf cotrain demo --clips demo/clips --parallel 2
    covid-cmsf cotrain paper/video/cotraining --clips CLIPS --dry-run
    covid-cmsf cotrain paper/video/ablation-n --clips CLIPS --reuse runs/paper/video/cotraining
    covid-cmsf cotrain paper/video/cotraining --clips CLIPS --engine slurm --job-gpus 1 --sbatch '--time=2-0' --detach
    """
    from covid_cmsf.config import config_name, find_config
    from covid_cmsf.cotrain.run import load_plan, prepare_plan

    cluster.check_engine(engine, job_cpus=job_cpus != 1, job_gpus=job_gpus > 0, sbatch=bool(sbatch), detach=detach)
    path = find_config("plans", plan)
    options = {"defaults.clips": clips, "defaults.encoder": encoder, "defaults.batch_size": batch_size}
    changes = [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]
    changes += [f"seeds=[{seeds.strip('[]')}]"] if seeds is not None else []
    changes += [f"splits=[{splits.strip('[]')}]"] if splits is not None else []
    changes += overrides or ()
    chosen = load_plan(path, changes)
    name = config_name("plans", path)
    folder = out or RUNS / name
    console = Console()
    if dry_run:
        from covid_cmsf.cotrain.display import print_costs
        from covid_cmsf.cotrain.executor import select_stages

        chosen, graphs = prepare_plan(chosen, folder, plan_dir=path.parent, only=only, start=start, parallel=parallel)
        wanted = select_stages([one for stages in graphs for one in stages], only=only, start=start)
        print_costs(chosen.repetitions, [[one for one in stages if one.id in wanted] for stages in graphs], console)
        return
    if engine != "local":
        from covid_cmsf.cotrain.run import plan_jobs

        command = ["cotrain", str(path), *changes, f"--out={folder}", f"--processes={num_processes}"]
        command += [f"--reuse={one}" for one in reuse or ()]
        find = partial(plan_jobs, chosen, folder, command, plan_dir=path.parent, only=only, start=start)
        resources = cluster.make_resources(job_cpus, job_gpus, sbatch)
        cluster.run_plan_jobs(engine, find, folder, resources, detach=detach)
    from covid_cmsf.cotrain.display import stage_bars
    from covid_cmsf.cotrain.gains import gain_notes, gains_table, read_gains
    from covid_cmsf.cotrain.run import run_plan
    from covid_cmsf.cotrain.table import has_labels, screen_table, table_notes

    with stage_bars() as show:
        code, rows = run_plan(
            chosen,
            folder,
            plan_dir=path.parent,
            only=only,
            start=start,
            parallel=parallel,
            num_processes=num_processes,
            reuse=reuse or (),
            show=show,
        )
    measured = "R@1 and linear in percent" if has_labels(rows) else "measured without labels"
    title = f"{name}: {measured}, protocol {chosen.evaluation.protocol}"
    if any(row["done"] for row in rows):
        console.print(screen_table(rows, title, width=console.width))
        gains = read_gains(folder)
        if gains:
            console.print(gains_table(gains, width=console.width))
            for note in gain_notes(gains):
                console.print(note, markup=False, highlight=False)
        console.print(f"{folder} has table.md, table.csv, table.json and a folder per stage")
    for note in table_notes(rows):
        console.print(note, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(code)
