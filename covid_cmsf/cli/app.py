"""Assemble the commands of `covid-cmsf`."""

import sys
from typing import Any

import typer

from covid_cmsf import __version__, exit_codes
from covid_cmsf.cli import (
    clips_export,
    cluster,
    config,
    data,
    doctor,
    embed,
    evaluate,
    extract,
    learn,
    models,
    report,
    search,
    sharing,
    train,
)
from preprocess.cli import preprocess
from preprocess.synthetic.cli import demo_videos

app = typer.Typer(
    name="covid-cmsf",
    help="Train video encoders without labels: self-supervised co-training of RGB and optical flow.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"covid-cmsf {__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks and debug messages; anywhere on the line."),
) -> None:
    """Options that every command understands (`--debug` is taken off the line in `exit_codes.run_app`)."""


app.command("learn")(learn.learn)
app.command("demo-videos")(demo_videos)
app.command("preprocess")(cluster.with_engine(preprocess))
data.clips_app.command("export")(clips_export.export)
app.add_typer(data.clips_app, name="clips")
app.add_typer(data.views_app, name="views")
app.add_typer(data.labels_app, name="labels")
app.add_typer(models.models_app, name="models")
models.weights_app.command("pack")(sharing.pack)
models.weights_app.command("push")(sharing.push)
app.add_typer(models.weights_app, name="weights")
app.command("train")(train.train)
app.command("cotrain")(train.cotrain)
app.command("replay")(train.replay)
app.command("status")(cluster.status)
app.command("submit")(cluster.submit)
app.command("extract")(cluster.with_engine(extract.extract))
app.command("embed")(embed.embed)
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(search.app, name="search")
app.add_typer(report.figures_app, name="figures")
app.command("report")(report.report)
app.add_typer(config.app, name="config")
app.command("doctor")(doctor.doctor)


def main(*command: str) -> None:
    """Run the console command; `command` is put in front of the arguments (launchers in tools/)."""
    sys.argv[1:1] = command
    exit_codes.run_app(build_command())


def build_command() -> Any:
    """Return the click command of all groups."""
    command = typer.main.get_command(app)
    exit_codes.hide_flag_types(command)
    return command
