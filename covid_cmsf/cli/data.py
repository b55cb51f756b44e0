"""`covid-cmsf clips`, `views` and `labels`: inspect clips and training views, write label files."""

import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from covid_cmsf import exit_codes
from covid_cmsf.cli.options import Clips, Columns, Json, NewFile, NewFolder, Seed
from covid_cmsf.logs import console, printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from covid_cmsf.clips.records import ClipRecord, FlowInfo


MAX_SHOWN = 12  # videos on a contact sheet
MAX_QUANTIZATION_ERROR = 0.1  # share of the mean motion above which `clips info` warns

clips_app = typer.Typer(help="Inspect and check a clip store, merge shards.", no_args_is_help=True)
Store = Annotated[Path, typer.Argument(help="Folder of the clip store.", show_default=False)]


@clips_app.command()
def info(clips: Store, as_json: Json = False) -> None:
    """Print videos per class and split, frame sizes, hours and the mean motion.

    \b
    covid-cmsf clips info clips
    """
    from covid_cmsf.clips.maintenance import summarize
    from covid_cmsf.clips.store import ClipStore

    store = ClipStore.open(clips)
    summary = summarize(store)
    if as_json:
        typer.echo(json.dumps({**asdict(summary), "store": store.info.model_dump(mode="json")}))
        return
    out = Console()
    columns = [(split, subset) for split, subsets in summary.subsets.items() for subset in subsets]
    table = Table("class", "label", "videos", *(f"{split} {subset}" for split, subset in columns))
    labels = {record.class_name: str(record.label) for record in store.records}
    for name, splits in summary.classes.items():
        counts = [splits[split].get(subset, 0) for split, subset in columns]
        total = sum(record.class_name == name for record in store.records)
        table.add_row(name or "(unlabeled)", labels[name], str(total), *map(str, counts))
    totals = [summary.subsets[split][subset] for split, subset in columns]
    table.add_section()
    table.add_row("all", "", str(summary.num_videos), *map(str, totals))
    out.print(table)
    sizes = ", ".join(f"{size} ({count})" for size, count in list(summary.frame_sizes.items())[:5])
    out.print(f"{summary.num_frames} frames, {summary.hours:.2f} h, {summary.num_sources} sources; frame sizes {sizes}")
    for modality, size in summary.bytes.items():
        out.print(f"{modality}: {size / 1e6:.1f} MB, {size / max(1, summary.num_frames):.0f} bytes per frame")
    if summary.flow is not None and store.info.flow is not None:
        out.print(
            f"flow: {store.info.flow.algorithm} by {store.info.flow.version}; mean motion "
            f"{summary.flow['mean_magnitude_px']:.2f} px per frame, {100 * summary.flow['clipped_fraction']:.2f}% at "
            f"the bound of {_describe_bound(store.info.flow, summary.flow['bound_px'])} (from "
            f"{summary.flow['num_videos']:.0f} videos)"
        )
        share = summary.flow["quantization_error"]
        out.print(f"flow quantization error: {100 * share:.1f}% of the mean motion")
        if share > MAX_QUANTIZATION_ERROR:
            console.print(
                f"[yellow]the flow is coarse[/]: rounding costs {100 * share:.0f}% of the mean motion; preprocess "
                "again with --flow-bound size or auto, or with a larger --short-edge"
            )
    if summary.num_failures:
        accepted = f", {len(store.accepted)} of them accepted" if store.accepted else ""
        out.print(f"{summary.num_failures} videos were skipped{accepted}: see {clips / 'failures.csv'}")


def _describe_bound(flow: "FlowInfo", mean_bound: float) -> str:
    """Return `5 px`, or `2.31 px on average, by motion`."""
    rules = {"size": ", by size", "auto": ", by motion"}
    return f"{mean_bound:.3g} px" + (f" on average{rules[flow.bound]}" if isinstance(flow.bound, str) else "")


@clips_app.command()
def check(
    clips: Store,
    workers: Annotated[int, typer.Option("--workers", min=1, help="Worker processes.")] = os.cpu_count() or 1,
) -> None:
    """Decode every file and compare it with the manifest; list the faults and exit with code 1 if there are any.

    \b
    covid-cmsf clips check clips
    """
    from covid_cmsf.clips.maintenance import check_store
    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.logs import progress_bar

    store = ClipStore.open(clips)
    with progress_bar("videos", len(store.records)) as advance:
        faults = check_store(store, num_workers=workers, on_video=advance)
    for fault in faults:
        typer.echo(printable(fault))
    if faults:
        console.print(f"[red]{len(faults)} faults[/] in {len(store.records)} videos", highlight=False)
        raise typer.Exit(exit_codes.FAILED)
    failure_note = f"; {len(store.failures)} videos were skipped, see failures.csv" if store.failures else ""
    typer.echo(f"{clips}: {len(store.records)} videos, all files open and match{failure_note}")


@clips_app.command()
def accept(
    clips: Store,
    videos: Annotated[
        list[str] | None, typer.Argument(help="Ids of skipped videos; default: all of them.", show_default=False)
    ] = None,
) -> None:
    """Accept videos that were skipped: they stay in failures.csv, but later commands no longer exit with code 3.

    A video that is skipped for another reason later is not accepted. Features that were extracted before keep their
    list: extract again with --force.

    \b
    covid-cmsf clips accept clips
    covid-cmsf clips accept clips Archery/v_Archery_g01_c01
    """
    from covid_cmsf.clips.acceptance import accept_failures
    from covid_cmsf.clips.store import ClipStore

    store = ClipStore.open(clips)
    added = accept_failures(store.path, videos or None)
    for failure in added:
        typer.echo(printable(f"accepted: {failure.video_id} ({failure.stage}): {failure.reason}"))
    typer.echo(f"{len(store.accepted)} of {len(store.failures)} skipped videos are accepted")


@clips_app.command("show")
def show_clips(
    clips: Clips,
    out: NewFile,
    video: Annotated[
        str,
        typer.Argument(
            help="Video id, or part of one; default: one video per class, or some of unlabeled ones.",
            show_default=False,
        ),
    ] = "",
    columns: Columns = 8,
) -> None:
    """Draw a contact sheet as PNG: RGB frames above, color-coded flow and motion vectors below.

    \b
    covid-cmsf clips show clips Archery -o sheet.png
    """
    from covid_cmsf.clips import open_clips
    from covid_cmsf.clips.contact_sheet import pick_examples, save_contact_sheet

    opened = open_clips(clips)
    if video:
        found = [r for r in opened.records if r.video_id == video] or [r for r in opened.records if video in r.video_id]
    else:
        found = pick_examples(opened.records, MAX_SHOWN)
    if not opened.records:
        raise ValueError(f"{clips} has no videos (yet)")
    if not found:
        raise ValueError(f"no video id in {clips} contains {video!r}; an example: {opened.records[0].video_id!r}")
    save_contact_sheet(opened, found[:MAX_SHOWN], out, num_columns=columns)
    of = f"{len(found)} matching videos" if video else f"{len(opened.records)} videos"
    typer.echo(f"wrote {out} ({min(len(found), MAX_SHOWN)} of {of})")


@clips_app.command()
def merge(
    stores: Annotated[list[Path], typer.Argument(help="Clip stores written with --shard.", show_default=False)],
    out: NewFolder,
) -> None:
    """Merge the clip stores of a job array (`preprocess --shard i/n`) into one; the shards are not changed.

    \b
    covid-cmsf clips merge clips-0 clips-1 -o clips
    """
    from covid_cmsf.clips.maintenance import merge_stores
    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.logs import progress_bar

    opened = [ClipStore.open(path) for path in stores]
    with progress_bar("videos", sum(len(store.records) for store in opened)) as advance:
        linked, copied = merge_stores(opened, out, on_video=advance)
    merged = ClipStore.open(out)
    typer.echo(
        f"{out}: {len(merged.records)} videos, {len(merged.failures)} skipped; {linked} files linked, {copied} copied"
    )
    unknown = {v for split in merged.splits.values() for v in split}
    unknown -= {r.video_id for r in merged.records} | {f.video_id for f in merged.failures}
    if unknown:
        console.print(f"[yellow]{len(unknown)} videos of the split lists are in no shard[/]: is one missing?")
        raise typer.Exit(exit_codes.SKIPPED_ITEMS)


# `covid-cmsf views ...`: the augmented views that a network is trained on.

views_app = typer.Typer(help="Draw the augmented views that a network is trained on.", no_args_is_help=True)


@views_app.callback()
def _views_group() -> None:
    """Keep the name of the subcommand, although there is only one."""


@views_app.command("show")
def show_views(
    clips: Clips,
    out: NewFile,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Settings of the views: pairing=coclr length=16 size=112.", show_default=False
        ),
    ] = None,
    config: Annotated[
        str | None,
        typer.Option(
            "--config",
            help="paper, coclr or demo, or a YAML file with a section `views`; default: paper.",
            show_default=False,
        ),
    ] = None,
    videos: Annotated[int, typer.Option("--videos", min=1, max=24, help="Number of videos.")] = 3,
    video: Annotated[str, typer.Option("--video", help="Only videos whose id contains this.", show_default=False)] = "",
    seed: Seed = 0,
    columns: Columns = 8,
) -> None:
    """Draw both views of some videos in every modality, after augmentation, as PNG.

    \b
    covid-cmsf views show clips pairing=coclr length=16 size=112 -o views.png
    """
    from covid_cmsf.clips import open_clips
    from covid_cmsf.config import find_config
    from covid_cmsf.views.config import load_view_config
    from covid_cmsf.views.dataset import ViewDataset
    from covid_cmsf.views.preview import save_view_preview

    view_config = load_view_config(None if config is None else find_config("views", config), overrides or [])
    opened = open_clips(clips)
    records = [record for record in opened.records if video in record.video_id]
    if not records:
        raise ValueError(f"no video id in {clips} contains {video!r}; an example: {opened.records[0].video_id!r}")
    data = ViewDataset(opened, records, view_config, seed=seed)
    chosen = [round(i * len(data) / videos) for i in range(min(videos, len(data)))]
    save_view_preview(data, chosen, out, num_columns=columns)
    typer.echo(f"wrote {out}: {', '.join(data.records[i].video_id for i in chosen)}")


# `covid-cmsf labels ...`: files of noisy labels and of labeled subsets.

labels_app = typer.Typer(
    no_args_is_help=True, help="Write label files: noisy labels (noise) or a labeled subset (fraction)."
)

ImagesOrClips = Annotated[
    str,
    typer.Argument(
        help="Images or clips: a folder, torchvision:CIFAR10?root=/data, a clip store, ...", show_default=False
    ),
]
ClipSplit = Annotated[str, typer.Option("--split", help="Split of the clips; images have only 1.")]


@labels_app.command()
def noise(
    clips: ImagesOrClips,
    rate: Annotated[
        float, typer.Option("--rate", min=0, max=0.999, help="Fraction of wrong labels.", show_default=False)
    ],
    out: NewFile,
    stratified: Annotated[
        bool, typer.Option("--stratified/--no-stratified", help="Apply the rate per class, or only overall.")
    ] = True,
    seed: Seed = 0,
    split: ClipSplit = "1",
) -> None:
    """Write all training images with noisy labels, one `<path> <label>` per line.

    Train with labels.file=OUT. OUT.json has the true labels, the settings and the file's hash.

    \b
    covid-cmsf labels noise torchvision:CIFAR10?root=data --rate 0.5 -o noisy-50.txt
    """
    from covid_cmsf.clips.labels import noisy_labels, write_noisy_labels

    records = _training_records(clips, split)
    labels = noisy_labels(records, rate=rate, seed=seed, stratified=stratified)
    num_wrong = sum(int(label) != record.label for label, record in zip(labels, records, strict=True))
    digest = write_noisy_labels(out, records, labels, rate=rate, seed=seed, stratified=stratified)
    typer.echo(f"{out}: {len(records)} images, {num_wrong} wrong labels, sha256 {digest}")


@labels_app.command("fraction")
def known_fraction(
    clips: ImagesOrClips,
    fraction: Annotated[
        float,
        typer.Option(
            "--fraction", min=1e-6, max=1, help="Labeled fraction per class, at least one image.", show_default=False
        ),
    ],
    out: NewFile,
    seed: Seed = 0,
    split: ClipSplit = "1",
) -> None:
    """Write the names of the training images whose labels are used, one per line; train with labels.known=OUT.

    \b
    covid-cmsf labels fraction images --fraction 0.1 -o labeled-10.txt
    """
    import numpy as np

    from covid_cmsf.clips.labels import sample_labeled_fraction, write_labeled_list

    records = _training_records(clips, split)
    labels = sample_labeled_fraction(np.array([record.label for record in records]), fraction=fraction, seed=seed)
    write_labeled_list(out, records, labels)
    typer.echo(f"{out}: {int((labels >= 0).sum())} of {len(records)} images are labeled")


def _training_records(clips: str, split: str) -> "Sequence[ClipRecord]":
    from covid_cmsf.clips import open_clips

    return open_clips(clips).select(split, "train")
