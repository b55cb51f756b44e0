"""`covid-cmsf train` and `covid-cmsf replay`."""

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from covid_cmsf import exit_codes


def train(
    config: Path = typer.Argument(
        ..., help="A YAML file (configs/ has examples), or the folder of a run to continue.", show_default=False
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
    from covid_cmsf.training.run_folder import CONFIG
    from covid_cmsf.training.settings import TrainSettings

    changes = list(overrides or [])
    if cache_gb is not None:
        changes.append(f"runtime.cache_gb={cache_gb}")
    folder = out
    if config.is_dir():
        if not (config / CONFIG).is_file():
            raise FileNotFoundError(f"{config} is not the folder of a run: it has no {CONFIG}")
        config, folder = config / CONFIG, out or config
    settings = load_config(TrainSettings, config, changes)
    if dry_run:
        _show_plan(settings)
        return
    from covid_cmsf.training.run import run_training

    outcome = run_training(settings, folder or Path("runs") / config.stem, accept_changes=accept_changes)
    if outcome == "stopped":
        raise typer.Exit(exit_codes.INTERRUPTED)


def _show_plan(settings) -> None:  # type: ignore[no-untyped-def]
    from covid_cmsf.training.dry_run import dry_run

    table = Table(show_header=False, title="nothing was written: this is a dry run")
    for name, words in dry_run(settings).facts.items():
        table.add_row(name, words)
    Console().print(table)


def replay(
    file: Path = typer.Argument(..., help="A failed-step-*.pt that a run has left.", show_default=False),
    device: str = typer.Option("cpu", help="Where to compute it."),
) -> None:
    """Compute a step again whose loss was not finite, and show where the first bad number appears."""
    from covid_cmsf.training.failure import replay as compute

    found = compute(file, device=device)
    table = Table(show_header=False, title=f"step {found.step}")
    table.add_row("loss", str(found.loss))
    table.add_row("first bad output", found.first_bad or "none: the loss itself")
    table.add_row("bad weights", ", ".join(found.bad_weights[:10]) or "none")
    table.add_row("bad rows in the bank", str(found.bad_rows))
    Console().print(table)
