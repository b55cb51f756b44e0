"""`covid-cmsf clips ...`: look at a clip store, check it, join shards."""

import json
import os
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

from covid_cmsf import exit_codes
from covid_cmsf.logs import console

app = typer.Typer(help="Look at a clip store, check it, join shards.", no_args_is_help=True)
STORE = typer.Argument(..., help="Folder of the clip store.", show_default=False)


@app.command()
def info(clips: Path = STORE, as_json: bool = typer.Option(False, "--json", help="Print one JSON object.")) -> None:
    """Counts by class and split, sizes, hours, how much things move."""
    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.clips.summary import summarize

    store = ClipStore.open(clips)
    summary = summarize(store)
    if as_json:
        typer.echo(json.dumps({**asdict(summary), "store": store.info.model_dump(mode="json")}))
        return
    out = Console()
    columns = [(split, part) for split, parts in summary.parts.items() for part in parts]
    table = Table("class", "label", "videos", *(f"{split} {part}" for split, part in columns))
    labels = {record.class_name: str(record.label) for record in store.records}
    for name, splits in summary.classes.items():
        counts = [splits[split].get(part, 0) for split, part in columns]
        total = sum(record.class_name == name for record in store.records)
        table.add_row(name or "(unlabeled)", labels[name], str(total), *map(str, counts))
    totals = [summary.parts[split][part] for split, part in columns]
    table.add_section()
    table.add_row("all", "", str(summary.num_videos), *map(str, totals))
    out.print(table)
    sizes = ", ".join(f"{size} ({count})" for size, count in list(summary.frame_sizes.items())[:5])
    out.print(f"{summary.num_frames} frames, {summary.hours:.2f} h, {summary.num_sources} sources; frame sizes {sizes}")
    for modality, size in summary.bytes.items():
        out.print(f"{modality}: {size / 1e6:.1f} MB, {size / max(1, summary.num_frames):.0f} bytes a frame")
    if summary.flow is not None and store.info.flow is not None:
        out.print(
            f"flow: {store.info.flow.algorithm} by {store.info.flow.version}; mean motion "
            f"{summary.flow['mean_magnitude_px']:.2f} px a frame, {100 * summary.flow['clipped_share']:.2f}% at the "
            f"bound of {store.flow_bound:g} px (from {summary.flow['num_videos']:.0f} videos)"
        )
    if summary.num_failures:
        out.print(f"{summary.num_failures} videos were set aside: see {clips / 'failures.csv'}")


@app.command()
def check(
    clips: Path = STORE,
    workers: int = typer.Option(os.cpu_count() or 1, min=1, help="Processes."),
) -> None:
    """Decode every file and compare with the manifest; exit code 1 and a list if anything is wrong."""
    from covid_cmsf.clips.checking import check_store
    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.logs import progress_bar

    store = ClipStore.open(clips)
    with progress_bar("videos", len(store.records)) as advance:
        faults = check_store(store, num_workers=workers, on_video=advance)
    for fault in faults:
        typer.echo(fault)
    if faults:
        console.print(f"[red]{len(faults)} faults[/] in {len(store.records)} videos", highlight=False)
        raise typer.Exit(exit_codes.FAILED)
    aside = f"; {len(store.failures)} videos are set aside in failures.csv" if store.failures else ""
    typer.echo(f"{clips}: {len(store.records)} videos, all files open and match{aside}")


@app.command()
def show(
    clips: Path = typer.Argument(
        ..., help="A clip store, a CoCLR LMDB, or a folder of JPEG frames.", show_default=False
    ),
    video: str = typer.Argument("", help="Video id, or part of one; left out: one video of each class."),
    out: Path = typer.Option(..., "--out", help="PNG file to write.", show_default=False),
    columns: int = typer.Option(8, min=2, max=32, help="Frames in a row."),
) -> None:
    """Draw a contact sheet: frames above, flow in the usual color wheel below."""
    from covid_cmsf.clips import open_clips
    from covid_cmsf.clips.contact_sheet import draw_contact_sheet

    opened = open_clips(clips)
    if video:
        found = [r for r in opened.records if r.video_id == video] or [r for r in opened.records if video in r.video_id]
    else:
        found = list({record.class_name: record for record in reversed(opened.records)}.values())[::-1]
    if not found:
        raise ValueError(f"no video id in {clips} contains {video!r}; an example: {opened.records[0].video_id!r}")
    draw_contact_sheet(opened, found[:12], out, num_columns=columns)
    typer.echo(f"wrote {out} ({min(len(found), 12)} of {len(found)} matching videos)")


@app.command()
def merge(
    stores: list[Path] = typer.Argument(..., help="Stores made with --shard.", show_default=False),
    out: Path = typer.Option(..., "--out", help="Folder of the joined store.", show_default=False),
) -> None:
    """Join the stores of a job array (`preprocess --shard i/n`) into one; the parts stay as they are."""
    from covid_cmsf.clips.merging import merge_stores
    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.logs import progress_bar

    opened = [ClipStore.open(path) for path in stores]
    with progress_bar("videos", sum(len(store.records) for store in opened)) as advance:
        linked, copied = merge_stores(opened, out, on_video=advance)
    merged = ClipStore.open(out)
    typer.echo(
        f"{out}: {len(merged.records)} videos, {len(merged.failures)} set aside; {linked} files linked, {copied} copied"
    )
    unknown = {v for split in merged.splits.values() for v in split}
    unknown -= {r.video_id for r in merged.records} | {f.video_id for f in merged.failures}
    if unknown:
        console.print(f"[yellow]{len(unknown)} videos of the split lists are in no shard[/]: is one missing?")
        raise typer.Exit(exit_codes.SET_ASIDE)
