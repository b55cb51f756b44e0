"""`covid-cmsf clips export`: the videos of a clip store for other tools."""

from pathlib import Path
from typing import Annotated

import typer

from covid_cmsf.cli.options import NewFolder
from covid_cmsf.logs import console


def export(
    clips: Annotated[Path, typer.Argument(help="Folder of the clip store.", show_default=False)],
    out: NewFolder,
    to: Annotated[str, typer.Option("--to", help="webdataset or huggingface.", show_default=False)],
    split: Annotated[str, typer.Option("--split", help="Split whose subsets are written.")] = "1",
    shard_size: Annotated[int, typer.Option("--shard-size", min=1, help="Videos per shard of WebDataset.")] = 1000,
) -> None:
    """Write the RGB videos of a store, their labels, sources and subsets for other tools; nothing is sent.

    webdataset: tar shards, a sample is .mp4, .json and .cls. huggingface: a folder that `datasets.load_dataset` opens.
    Files are those of the store, unchanged; the same store gives the same bytes. `covid-cmsf preprocess` reads both.

    \b
    covid-cmsf clips export clips --to webdataset -o shards
    covid-cmsf clips export clips --to huggingface -o dataset
    """
    from covid_cmsf.clips.export import export_clips
    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.logs import progress_bar

    store = ClipStore.open(clips)
    with progress_bar("videos", len(store.records)) as advance:
        summary = export_clips(store, out, to=to, split=split, shard_size=shard_size, on_video=advance)
    counts = ", ".join(f"{count} {subset}" for subset, count in summary.subsets.items())
    typer.echo(f"{out}: {sum(summary.subsets.values())} videos ({counts}) in {summary.num_files} files")
    if summary.num_left_out:
        console.print(
            f"[yellow]{summary.num_left_out} videos were left out[/]: they are in no subset of split {split!r}",
            highlight=False,
        )
