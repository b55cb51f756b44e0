"""The command `covid-cmsf preprocess`, also `python -m preprocess`."""

import logging
import os
import signal
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer
from rich.markup import escape
from rich.table import Table

from covid_cmsf import __version__, exit_codes
from covid_cmsf.logs import add_jsonl_file, console, format_bytes, format_duration, printable, remove_handler

if TYPE_CHECKING:
    from covid_cmsf.clips.records import StoreInfo
    from preprocess.config import WorkerConfig
    from preprocess.layouts import Video
    from preprocess.run import RunSummary

logger = logging.getLogger(__name__)
INPUT_PANEL = "Input"
STORE_PANEL = "Clip store"
RUN_PANEL = "Execution"
MAX_WARNINGS = 5


def preprocess(
    videos: Path = typer.Argument(
        ...,
        help="Folder of video files, a list of them (.csv, .jsonl), or an archive (.tar, .zip; WebDataset's shards).",
        show_default=False,
    ),
    out: Path = typer.Option(
        ..., "--out", "-o", help="Folder of the clip store, new or to resume.", show_default=False
    ),
    layout: str | None = typer.Option(
        None,
        help="ucf101, hmdb51, kinetics, ssv2 (Something-Something v2), diving48, folder (<class>/**/video), flat (no "
        "labels), list (CSV or JSONL with the column file; where wanted id, label, source, subset, start, end), "
        "archive (tar or zip, also a folder of them), or huggingface (a folder with "
        "metadata.jsonl); default: folder, or list or archive if VIDEOS is one.",
        rich_help_panel=INPUT_PANEL,
    ),
    splits: Path | None = typer.Option(
        None,
        help="Split lists: folder of the data set's own lists, or Kinetics CSV. Optional for UCF-101.",
        rich_help_panel=INPUT_PANEL,
    ),
    classes: str | None = typer.Option(
        None, help="Only these classes, by name: Archery,Diving; default: all.", rich_help_panel=INPUT_PANEL
    ),
    test_fraction: float | None = typer.Option(
        None,
        help="Layout folder: fraction of the sources for testing (default 0.25); also of a list or archive without "
        "subsets.",
        rich_help_panel=INPUT_PANEL,
    ),
    seed: int = typer.Option(
        0, help="Layouts folder, list, archive and huggingface: seed of the random split.", rich_help_panel=INPUT_PANEL
    ),
    source_pattern: str | None = typer.Option(
        None,
        help="Layouts folder, flat, archive and huggingface: regular expression on the path whose first group is the "
        "source, the footage that several clips were cut from. Clips of one source are never in both train and test.",
        rich_help_panel=INPUT_PANEL,
    ),
    decoder: str = typer.Option(
        "auto", help="auto (av), av, decord, torchcodec or torchcodec:cuda.", rich_help_panel=INPUT_PANEL
    ),
    modalities: str = typer.Option(
        "rgb,flow",
        help="rgb, flow, motion (motion vectors of the file itself: coarse, at no cost), audio (spectrograms of its "
        "sound), or several.",
        rich_help_panel=STORE_PANEL,
    ),
    short_edge: int = typer.Option(
        0, min=0, help="Resize the short edge to this many pixels; 0 = no resize.", rich_help_panel=STORE_PANEL
    ),
    max_frames: int = typer.Option(
        0, min=0, help="Store only the first frames of each video; 0 = all.", rich_help_panel=STORE_PANEL
    ),
    fps: float = typer.Option(
        0.0,
        min=0,
        max=240,
        help="Resample to this many frames per second by time stamps, so that a clip of 32 frames lasts as long in "
        "every video; 0 = each video's own rate.",
        rich_help_panel=STORE_PANEL,
    ),
    quality: int = typer.Option(
        18, min=0, max=51, help="x264 crf of RGB, lower is better; flow: 3 lower.", rich_help_panel=STORE_PANEL
    ),
    flow_backend: str = typer.Option(
        "auto",
        help="TV-L1 by numba (CPU), numba-fast, torch (GPU) or opencv (reference, slow); auto: numba or torch, what is "
        "measured to be faster; or another algorithm: dis, farneback, raft (needs --flow-parameters weights=FILE).",
        rich_help_panel=STORE_PANEL,
    ),
    flow_bound: str = typer.Option(
        "size",
        help="Flow is clipped to plus or minus this many pixels. size: 20 at a short edge of 240 stored pixels or "
        "more, proportionally less below; auto: per video, the 99.9th percentile of its motion.",
        rich_help_panel=STORE_PANEL,
    ),
    flow_size: str = typer.Option(
        "stored",
        help="Compute flow on frames as stored, or native: on the video's own frames, then resize the flow, as Han et "
        "al. did. Its values are stored pixels in both cases.",
        rich_help_panel=STORE_PANEL,
    ),
    flow_parameters: str = typer.Option(
        "",
        help="Parameters of the flow backend, for TV-L1 by OpenCV's names: 'warps=3,epsilon=0.02'; of dis: "
        "'preset=fast'; empty = the defaults.",
        rich_help_panel=STORE_PANEL,
    ),
    workers: int = typer.Option(
        os.cpu_count() or 1, min=1, help="Worker processes, one thread each.", rich_help_panel=RUN_PANEL
    ),
    shard: str | None = typer.Option(
        None,
        help="i/n: only every n-th video, for job arrays; merge with `clips merge`.",
        rich_help_panel=RUN_PANEL,
    ),
    time_limit: float = typer.Option(
        3600.0, help="Skip a video that takes longer than this many seconds.", rich_help_panel=RUN_PANEL
    ),
    retry_failed: bool = typer.Option(False, help="Retry the videos in failures.csv.", rich_help_panel=RUN_PANEL),
    estimate: bool = typer.Option(
        False, help="Convert a few videos, print the estimated time and size, and exit.", rich_help_panel=RUN_PANEL
    ),
    lease_seconds: float = typer.Option(
        60.0,
        min=0.5,
        help="Take over a video of another process after this many seconds without its heartbeat.",
        rich_help_panel=RUN_PANEL,
    ),
) -> None:
    """Turn a folder, list or archive of videos into a clip store: RGB and TV-L1 optical flow, ready for training.

    Interrupt it at any time and run the same command again to resume. Run the same command in several terminals, or on
    several machines with a shared disk, to divide the work. A video that can't be read is skipped and listed in
    failures.csv; the exit code is then 3.

    \b
    covid-cmsf preprocess UCF-101 --layout ucf101 -o clips
    covid-cmsf preprocess UCF-101 --layout ucf101 --classes Archery,Diving -o clips
    covid-cmsf preprocess my_videos --short-edge 160 -o clips
    covid-cmsf preprocess my_clips.csv --short-edge 160 -o clips
    covid-cmsf preprocess shards --layout archive -o clips
    """
    from preprocess.audio import check_sound
    from preprocess.config import make_store_info, make_worker_configs
    from preprocess.layouts import default_layout, scan_collection, select_shard
    from preprocess.run import PreprocessRun
    from preprocess.store import prepare_store

    make_info = partial(
        make_store_info,
        out,
        modalities=modalities,
        short_edge=short_edge,
        max_frames=max_frames,
        fps=fps,
        quality=quality,
        flow_backend=flow_backend,
        flow_bound=flow_bound,
        flow_size=flow_size,
        flow_parameters=flow_parameters,
        software=f"covid-cmsf {__version__}",
        workers=workers,
    )
    make_workers = partial(make_worker_configs, decoder=decoder, num_workers=workers)
    info = make_info()
    worker_configs = make_workers(info)
    collection = scan_collection(
        layout or default_layout(videos),
        videos,
        splits=splits,
        test_fraction=test_fraction,
        seed=seed,
        source_pattern=source_pattern,
        classes=None if classes is None else classes.split(","),
    )
    has_cuts = any(video.cut_start or video.cut_end for video in collection.videos)
    if (chosen := worker_configs[0].decoder) != "av" and (has_cuts or fps):
        raise ValueError(f"the decoder {chosen} has no exact time stamps to cut or resample by; use --decoder av")
    for warning in collection.warnings:
        logger.warning(warning)
    selected_videos = select_shard(collection.videos, shard)
    if "audio" in info.modalities and not any(video.member for video in selected_videos):
        check_sound(video.path for video in selected_videos)  # of an archive's members each is told in its turn
    if estimate:
        _print_estimate(selected_videos, info, worker_configs)
        return
    if flow_backend == "auto" and (out / "store.json").is_file():  # perhaps begun meanwhile, by another machine
        info = make_info()
        worker_configs = make_workers(info)
    info = prepare_store(out, info)
    (out / ".work" / "logs").mkdir(parents=True, exist_ok=True)
    log_handler = add_jsonl_file(out / ".work" / "logs" / f"{os.uname().nodename}-{os.getpid()}.jsonl")
    signal.signal(signal.SIGTERM, _raise_interrupt)
    try:
        run = PreprocessRun(out, collection, info, lease_seconds=lease_seconds)
        summary = run.run(selected_videos, worker_configs, time_limit=time_limit, retry_failed=retry_failed)
        if not summary.interrupted:
            _warn_of_duplicates(out)
        raise typer.Exit(_print_summary(summary, out))
    finally:
        remove_handler(log_handler)


def _raise_interrupt(signal_number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _warn_of_duplicates(out: Path) -> None:
    from covid_cmsf.clips.duplicates import find_duplicates
    from covid_cmsf.clips.records import read_manifest, read_split

    splits = {path.stem: read_split(path) for path in sorted((out / "splits").glob("*.csv"))}
    found = list(find_duplicates(read_manifest(out / "manifest.csv"), splits))
    for sentence in found[:MAX_WARNINGS]:
        logger.warning(sentence)
    if len(found) > MAX_WARNINGS:
        logger.warning("%d more of this kind: `covid-cmsf clips check` lists them all", len(found) - MAX_WARNINGS)


def _print_summary(summary: "RunSummary", out: Path) -> int:
    """Print the summary of a run; return the exit code."""
    from covid_cmsf.clips.acceptance import read_accepted

    speed = summary.num_frames / max(summary.seconds, 1e-9)
    logger.info(
        "%d videos converted, %d already done, %d done by other processes; %d frames in %.0f s (%.0f frames/s)",
        summary.num_done, summary.num_already_done, summary.num_done_by_others,
        summary.num_frames, summary.seconds, speed,
    )  # fmt: skip
    accepted = read_accepted(out)
    failures = [failure for failure in summary.failures if failure not in accepted]
    if accepted:
        logger.info("%d videos were skipped and are accepted: %s", len(accepted), out / "failures.csv")
    if failures:
        table = Table("video", "stage", "reason", title=f"{len(failures)} videos were skipped")
        for failure in failures[:10]:
            table.add_row(escape(failure.video_id), failure.stage, escape(printable(failure.reason)))
        console.print(table)
        console.print(
            f"all skipped videos: {out / 'failures.csv'}; --retry-failed retries them, `covid-cmsf clips accept {out}` "
            "accepts them",
            highlight=False,
            soft_wrap=True,
        )
    if summary.interrupted:
        logger.warning("interrupted; run the same command to resume")
        return exit_codes.INTERRUPTED
    logger.info("clip store: %s", out)
    return exit_codes.SKIPPED_ITEMS if failures else exit_codes.SUCCESS


def _print_estimate(videos: "list[Video]", info: "StoreInfo", worker_configs: "list[WorkerConfig]") -> None:
    from preprocess.config import make_store_flow
    from preprocess.estimate import estimate

    with console.status("timing a few videos ..."):
        result = estimate(
            videos,
            info,
            decoder=worker_configs[0].decoder,
            flow=make_store_flow(info, worker_configs[0].device),
            num_workers=len(worker_configs),
        )
    typer.echo(
        f"{len(videos)} videos: about {format_duration(3600 * result.hours)} with {len(worker_configs)} workers, "
        f"about {format_bytes(1e9 * result.gigabytes)}"
    )
    typer.echo(
        f"measured on {result.num_sampled} videos ({result.num_failed} unreadable): {result.frames_per_second:.1f} "
        f"frames/s per worker, {result.bytes_per_frame:.0f} bytes per frame and modality; extrapolated by file size"
    )
