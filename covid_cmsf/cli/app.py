"""Puts the groups of commands together."""

import typer

from covid_cmsf import __version__, boundary
from covid_cmsf.cli import (
    clips,
    cotrain,
    doctor,
    evaluate,
    extract,
    figures,
    labels,
    models,
    report,
    train,
    views,
    weights,
)
from preprocess.command import preprocess
from preprocess.demo_videos.command import demo_videos

app = typer.Typer(
    name="covid-cmsf",
    help="Teach video encoders without labels: RGB and optical flow take turns in teaching each other.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"covid-cmsf {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
    debug: bool = typer.Option(False, "--debug", help="Show tracebacks and debug messages; may stand anywhere."),
) -> None:
    """Options that every command understands (`--debug` is taken off the line in `boundary.run`)."""


app.command("demo-videos")(demo_videos)
app.command("preprocess")(preprocess)
app.add_typer(clips.app, name="clips")
app.add_typer(views.app, name="views")
app.add_typer(labels.app, name="labels")
app.add_typer(models.app, name="models")
app.add_typer(weights.app, name="weights")
app.command("train")(train.train)
app.command("cotrain")(cotrain.cotrain)
app.command("replay")(train.replay)
app.command("extract")(extract.extract)
app.add_typer(evaluate.app, name="evaluate")
app.add_typer(figures.app, name="figures")
app.command("report")(report.report)
app.command("doctor")(doctor.doctor)


def main() -> None:
    """The entry point of the console command."""
    boundary.run(app)
