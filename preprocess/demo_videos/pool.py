"""Clips in worker processes: one thread each, deaf to Ctrl-C (the parent decides), gone when the parent is."""

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import cv2

from preprocess.demo_videos.clip import write_clip
from preprocess.demo_videos.names import ClipName
from preprocess.demo_videos.settings import DemoSettings


def write_clips(
    out: Path, names: list[ClipName], settings: DemoSettings, workers: int
) -> Generator[ClipName, None, None]:
    """Writes the clips, here or in worker processes, and yields each one when it is there."""
    if workers == 1 or len(names) < 2:
        for name in names:
            write_clip(out, name, settings)
            yield name
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=start_worker)
    try:
        futures = {pool.submit(write_clip, out, name, settings): name for name in names}
        for future in as_completed(futures):
            future.result()
            yield futures[future]
    finally:
        pool.shutdown(cancel_futures=True)


def start_worker() -> None:
    """Runs first in every worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    cv2.setNumThreads(1)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "only for worker processes"
    parent.join()
    os._exit(1)
