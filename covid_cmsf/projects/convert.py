"""The first phase of a project: videos become clips."""

import os
from pathlib import Path

from covid_cmsf import __version__
from covid_cmsf.clips.acceptance import read_accepted
from covid_cmsf.clips.records import Failure, StoreInfo
from covid_cmsf.logs import add_jsonl_file, remove_handler
from preprocess.config import WorkerConfig, make_store_info, make_worker_configs
from preprocess.layouts import Collection
from preprocess.run import PreprocessRun
from preprocess.store import prepare_store

TIME_LIMIT = 6 * 3600.0  # seconds per video


def store_settings(clips: Path, *, short_edge: int, device: str, workers: int) -> tuple[StoreInfo, list[WorkerConfig]]:
    """Return the settings of a project's clip store and of its workers; a store that is there keeps its flow backend.

    On a CPU flow is computed by the fast variant of TV-L1, within 0.02 pixels of the exact one in two thirds of its
    time.
    """
    backend = "numba-fast" if device == "cpu" and not (clips / "store.json").is_file() else "auto"
    info = make_store_info(
        clips,
        modalities="rgb,flow",
        short_edge=short_edge,
        max_frames=0,
        quality=18,
        flow_backend=backend,
        flow_bound="size",
        flow_size="stored",
        flow_parameters="",
        software=f"covid-cmsf {__version__}",
        workers=workers,
    )
    return info, make_worker_configs(info, decoder="auto", num_workers=workers)


def convert_videos(clips: Path, collection: Collection, *, short_edge: int, device: str, workers: int) -> int:
    """Convert the videos that the store does not have yet, or whose file has changed; return how many were converted.

    Raises:
        KeyboardInterrupt: a signal came; call again to resume.
    """
    info, worker_configs = store_settings(clips, short_edge=short_edge, device=device, workers=workers)
    info = prepare_store(clips, info)
    (clips / ".work" / "logs").mkdir(parents=True, exist_ok=True)
    handler = add_jsonl_file(clips / ".work" / "logs" / f"{os.uname().nodename}-{os.getpid()}.jsonl")
    try:
        run = PreprocessRun(clips, collection, info, lease_seconds=30.0)
        summary = run.run(collection.videos, worker_configs, time_limit=TIME_LIMIT, retry_failed=False)
    finally:
        remove_handler(handler)
    if summary.interrupted:
        raise KeyboardInterrupt
    return summary.num_done


def open_failures(clips: Path, failures: list[Failure]) -> list[Failure]:
    """Return the failures that the user has not accepted."""
    accepted = set(read_accepted(clips))
    return [failure for failure in failures if failure not in accepted]
