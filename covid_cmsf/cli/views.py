"""`covid-cmsf views ...`: see what the networks see."""

from pathlib import Path

import typer

app = typer.Typer(help="See what the networks see.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps the subcommand's name on the command line also while there is only one."""


@app.command()
def show(
    clips: Path = typer.Argument(
        ..., help="A clip store, a CoCLR LMDB, or a folder of JPEG frames.", show_default=False
    ),
    overrides: list[str] = typer.Argument(None, help="Settings, for example pairing=coclr length=16 size=112."),
    out: Path = typer.Option(..., "--out", help="PNG file to write.", show_default=False),
    config: Path | None = typer.Option(None, "--config", help="YAML file of view settings, or with a section `views`."),
    videos: int = typer.Option(3, min=1, max=24, help="How many videos."),
    video: str = typer.Option("", help="Only videos whose id contains this."),
    seed: int = typer.Option(0, help="Another seed, other views."),
    columns: int = typer.Option(8, min=1, max=32, help="Frames in a row."),
) -> None:
    """Draw both views of some videos in every modality, after augmentation, so that you can check them by eye."""
    from covid_cmsf.clips import open_clips
    from covid_cmsf.views.configuration import load_view_settings
    from covid_cmsf.views.dataset import ViewDataset
    from covid_cmsf.views.picture import draw_views

    settings = load_view_settings(config, overrides or [])
    opened = open_clips(clips)
    records = [record for record in opened.records if video in record.video_id]
    if not records:
        raise ValueError(f"no video id in {clips} contains {video!r}; an example: {opened.records[0].video_id!r}")
    data = ViewDataset(opened, records, settings, seed=seed)
    chosen = [round(i * len(data) / videos) for i in range(min(videos, len(data)))]
    draw_views(data, chosen, out, num_columns=columns)
    typer.echo(f"wrote {out}: {', '.join(data.records[i].video_id for i in chosen)}")
