"""`covid-cmsf learn`: one command from a folder of videos to encoders, index and page."""

from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from covid_cmsf import exit_codes
from covid_cmsf.cli.options import Device, interrupt_on_sigterm

if TYPE_CHECKING:
    from covid_cmsf.projects.estimate import ProjectEstimate
    from covid_cmsf.projects.learn import LearnResult

VIDEOS_PANEL = "Videos"
PLAN_PANEL = "Training"
MAX_LISTED = 10
UNTRAINED = {"image": "image network, trained on photographs", "motion": "flow histogram, not trained"}  # entries


def learn(
    videos: Path = typer.Argument(
        ...,
        help="Folder of video files, also in subfolders, or a list of them: .csv or .jsonl with the column file; where "
        "wanted id, label, source, start, end.",
        show_default=False,
    ),
    out: Path = typer.Option(
        ..., "--out", "-o", help="Folder of the project, new or to go on with.", show_default=False
    ),
    estimate: bool = typer.Option(False, "--estimate", help="Say how long it takes and how much disk; write nothing."),
    time: str | None = typer.Option(
        None,
        "--time",
        help="Fit the training into a time, all in all: 30m, 2h, 1h30m.",
        show_default=False,
        rich_help_panel=PLAN_PANEL,
    ),
    retrain: bool = typer.Option(
        False,
        "--retrain",
        help="Train once more, on all videos that are there now, from the present weights.",
        rich_help_panel=PLAN_PANEL,
    ),
    labels: Path | None = typer.Option(
        None,
        "--labels",
        help="CSV file with columns file,label[,source]: measures by label; never used in training.",
        show_default=False,
        rich_help_panel=VIDEOS_PANEL,
    ),
    layout: str | None = typer.Option(
        None,
        "--layout",
        help="flat: no labels (default); folder: the first folder below VIDEOS is the class, as with --labels.",
        show_default=False,
        rich_help_panel=VIDEOS_PANEL,
    ),
    source_pattern: str | None = typer.Option(
        None,
        "--source-pattern",
        help="Regular expression on the path whose first group names the footage that several clips were cut from.",
        show_default=False,
        rich_help_panel=VIDEOS_PANEL,
    ),
    short_edge: int | None = typer.Option(
        None,
        "--short-edge",
        min=16,
        help="Pixels of the stored clips; default: 60 on a CPU (128 with --image or --guide), 160 on a GPU.",
        show_default=False,
        rich_help_panel=VIDEOS_PANEL,
    ),
    image: str | None = typer.Option(
        None,
        "--image",
        help="timm:NAME or timm:NAME?weights=FILE: search also by an image network on single frames; none: without it.",
        show_default=False,
        rich_help_panel=PLAN_PANEL,
    ),
    guide: str | None = typer.Option(
        None,
        "--guide",
        help="timm:NAME?weights=FILE, torchvision:NAME?weights=FILE or transformers:FOLDER: this network guides both, "
        "instead of each the other.",
        show_default=False,
        rich_help_panel=PLAN_PANEL,
    ),
    device: Device = "auto",
    workers: int | None = typer.Option(
        None, "--workers", min=1, help="Processes that convert videos; default: one per core.", show_default=False
    ),
    seed: int | None = typer.Option(
        None, "--seed", min=0, help="Random seed of the training; default: 0.", show_default=False
    ),
) -> None:
    """Learn from a folder of videos, without labels: two encoders, a search index and a page to explore.

    It converts the videos, writes a plan sized to them (PROJECT/plan.yaml, which you may edit), trains, embeds, and
    indexes. Interrupt it at any time: the same command goes on. Later, it takes in videos that were added to the folder
    without training anew, and leaves out those that are gone. Videos that cannot be read are skipped: exit code 3.

    \b
    covid-cmsf learn VIDEOS --out PROJECT --estimate
    covid-cmsf learn VIDEOS --out PROJECT --time 2h
    covid-cmsf learn scenes.csv --out PROJECT
    """
    from covid_cmsf.projects.estimate import parse_time
    from covid_cmsf.projects.learn import estimate_learning
    from covid_cmsf.projects.learn import learn as run_learn
    from covid_cmsf.projects.opening import Options

    options = Options(
        layout=layout,
        labels=labels,
        source_pattern=source_pattern,
        short_edge=short_edge,
        seed=seed,
        image=image,
        guide=guide,
        device=device,
        workers=workers,
        seconds=None if time is None else parse_time(time),
        retrain=retrain,
    )
    with interrupt_on_sigterm():
        if estimate:
            _print_estimate(estimate_learning(videos, out, options))
            return
        result = run_learn(videos, out, options)
    _print_summary(result)
    if result.skipped:
        raise typer.Exit(exit_codes.SKIPPED_ITEMS)


def _print_estimate(guess: "ProjectEstimate") -> None:
    from rich.table import Table

    from covid_cmsf.logs import format_bytes, format_duration
    from covid_cmsf.projects.sizes import describe_size

    table = Table("phase", "time", title="estimated; nothing was written")
    phases = {
        "convert the videos, with optical flow": guess.convert,
        "train two networks": guess.train,
        "embed": guess.embed,
        "index and page": guess.page,
    }
    for name, seconds in phases.items():
        table.add_row(name, format_duration(seconds))
    table.add_section()
    table.add_row("all", format_duration(guess.total))
    console = Console()
    console.print(table)
    console.print(f"disk: about {format_bytes(guess.bytes)}", highlight=False)
    console.print(f"plan: {describe_size(guess.plan, guess.footage)}", highlight=False, soft_wrap=True)


def _print_summary(result: "LearnResult") -> None:
    from covid_cmsf.logs import printable
    from covid_cmsf.projects.measures import describe

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"\n{result.folder}: {result.num_videos} videos, encoders for {' and '.join(result.encoders)}")
    for name, measures in result.measures.items():
        console.print(f"{name} ({result.encoders.get(name, UNTRAINED.get(name, 'not trained here'))})", markup=False)
        for line in describe(measures):
            console.print(f"  {line}", markup=False)
    if result.skipped:
        videos = "1 video" if len(result.skipped) == 1 else f"{len(result.skipped)} videos"
        console.print(f"{videos} could not be read:", style="yellow")
        for failure in result.skipped[:MAX_LISTED]:
            console.print(printable(f"  {failure.video_id}: {failure.reason}"), style="yellow", markup=False)
        clips = result.folder / "clips"
        console.print(
            f"  all of them: {clips / 'failures.csv'}; `covid-cmsf clips accept {clips}` accepts them", style="yellow"
        )
    console.print(f"page: {result.folder / 'page' / 'index.html'}")
    console.print("next:")
    console.print(f"  covid-cmsf search query {result.folder} my.mp4", markup=False)
    console.print(f"  covid-cmsf search serve {result.folder}", markup=False)
