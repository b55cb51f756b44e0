"""`covid-cmsf train` and `covid-cmsf replay`."""

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from covid_cmsf import exit_codes


def train(
    config_path: Path = typer.Argument(
        ...,
        metavar="CONFIG",
        help="A YAML file (configs/ has examples), or the folder of a run to continue.",
        show_default=False,
    ),
    overrides: list[str] = typer.Argument(
        None, help="Settings, for example modality=flow optimizer.lr=5e-4 method.k=5. Later ones win."
    ),
    out: Path | None = typer.Option(
        None, "--out", help="Folder of the run. By default runs/ and the file's name.", show_default=False
    ),
    cache_gb: float | None = typer.Option(
        None, "--cache-gb", min=0, help="Keep so many gigabytes of decoded clips in memory.", show_default=False
    ),
    dry_run: bool = typer.Option(
        False, "--dry-run", help="Build everything, run two steps, print the plan, leave nothing behind."
    ),
    accept_changes: bool = typer.Option(
        False, "--accept-changes", help="Continue a run although its settings were changed."
    ),
) -> None:
    """Train an encoder: CMSF, MSF, BYOL-asym, InfoNCE, UberNCE, CoCLR, SupCon, ProtoNW, FrzProto or cross entropy.

    The same command continues a run that was stopped, in the middle of an epoch too. Ctrl-C, SIGTERM and SIGUSR1
    finish the step, save, and end with exit code 75. Several GPUs or machines: torchrun --nproc-per-node 4 -m
    covid_cmsf train CONFIG ...
    """
    from covid_cmsf.config import load_config
    from covid_cmsf.training.checkpoints import Checkpoints
    from covid_cmsf.training.config import TrainConfig
    from covid_cmsf.training.run_dir import CONFIG_FILE

    changes = list(overrides or [])
    if cache_gb is not None:
        changes.append(f"runtime.cache_gb={cache_gb}")
    folder = out
    if config_path.is_dir():
        if not (config_path / CONFIG_FILE).is_file():
            raise FileNotFoundError(f"{config_path} is not the folder of a run: it has no {CONFIG_FILE}")
        Checkpoints(config_path / "checkpoints").check_resumable()
        config_path, folder = config_path / CONFIG_FILE, out or config_path
    config = load_config(TrainConfig, config_path, changes)
    if dry_run:
        _show_dry_run(config)
        return
    from covid_cmsf.training.run import run_training

    status = run_training(config, folder or Path("runs") / config_path.stem, accept_changes=accept_changes)
    if status == "stopped":
        raise typer.Exit(exit_codes.INTERRUPTED)


def _show_dry_run(config) -> None:  # type: ignore[no-untyped-def]
    from covid_cmsf.training.dry_run import dry_run

    table = Table(show_header=False, title="nothing was written: this is a dry run")
    for name, value in dry_run(config).entries.items():
        table.add_row(name, value)
    Console().print(table)


def replay(
    file: Path = typer.Argument(..., help="A failed-step-*.pt that a run has left.", show_default=False),
    device: str = typer.Option("cpu", help="Where to compute it."),
) -> None:
    """Compute a step again whose loss was not finite, and show where the first bad number appears."""
    from covid_cmsf.training.failures import replay as replay_step

    replayed = replay_step(file, device=device)
    table = Table(show_header=False, title=f"step {replayed.step}")
    table.add_row("loss", str(replayed.loss))
    table.add_row("first bad output", replayed.first_bad or "none: the loss itself")
    table.add_row("bad weights", ", ".join(replayed.bad_weights[:10]) or "none")
    table.add_row("bad entries in the bank", str(replayed.bad_entries))
    Console().print(table)


# `covid-cmsf cotrain`.


def cotrain(
    plan: Path = typer.Argument(
        ..., help="A YAML file: stages, or rounds. configs/demo and configs/paper have some.", show_default=False
    ),
    overrides: list[str] = typer.Argument(None, help="Changes, for example rounds=1 defaults.batch_size=64."),
    out: Path | None = typer.Option(
        None, "--out", help="Folder of the plan. By default runs/ and the file's name.", show_default=False
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Print the stages as a graph, with cost estimates."),
    only: str | None = typer.Option(None, "--only", help="Do this stage and nothing else.", show_default=False),
    start: str | None = typer.Option(None, "--from", help="Do the stages from this one on.", show_default=False),
    parallel: int = typer.Option(1, "--parallel", min=1, help="Stages side by side: each on a GPU of its own."),
    num_processes: int = typer.Option(1, "--processes", min=1, help="Processes of each stage, under torchrun."),
) -> None:
    """Run co-training rounds: every stage trains one network, from a start, under the guidance of others.

    It behaves like a build system. What is done is not done again; a changed setting redoes its stage and those that
    need it; a killed plan continues in the middle of a stage. After each stage features are extracted and measured,
    and the table of the plan is printed and written to table.md, table.csv and table.json.
    """
    from covid_cmsf.cotrain.run import build_graphs, load_plan

    chosen = load_plan(plan, list(overrides or []))
    folder = out or Path("runs") / plan.stem
    console = Console()
    if dry_run:
        from covid_cmsf.cotrain.display import cost_table, stage_costs, stage_tree
        from covid_cmsf.cotrain.executor import select_stages

        for stages in build_graphs(chosen, folder, plan_dir=plan.parent):
            wanted = select_stages(stages, only=only, start=start)
            stages = [stage for stage in stages if stage.name in wanted] if only or start else stages
            console.print(stage_tree(stages))
            console.print(cost_table(stages, stage_costs(stages)))
        return
    from covid_cmsf.cotrain.display import stage_bars
    from covid_cmsf.cotrain.run import run_plan
    from covid_cmsf.cotrain.table import screen_table

    with stage_bars() as show:
        code, rows = run_plan(
            chosen,
            folder,
            plan_dir=plan.parent,
            only=only,
            start=start,
            parallel=parallel,
            num_processes=num_processes,
            show=show,
        )
    title = f"{plan.stem}: R@1 and linear in percent, protocol {chosen.evaluation.protocol}"
    console.print(screen_table(rows, title, width=console.width))
    console.print(f"everything is in {folder}: table.md, table.csv, table.json, and a folder for each stage")
    raise typer.Exit(code)
