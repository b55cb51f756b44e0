"""Demo videos: a small data set in UCF-101's layout, made from nothing but a seed.

A class is a motion of a kind of object. What misleads RGB (looks, by group) and what misleads flow (the
camera, speed and distractors, by clip) are drawn apart, so that each modality can teach the other what it
can't see itself.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from preprocess.demo_videos.names import CLASS_NAMES
from preprocess.demo_videos.settings import DIFFICULTIES, DemoSettings

__all__ = ["CLASS_NAMES", "DIFFICULTIES", "DemoSettings", "generate"]


def generate(
    out: Path,
    settings: DemoSettings | None = None,
    *,
    workers: int = 1,
    on_progress: Callable[[int], None] = lambda num_done: None,
) -> int:
    """Writes the set into the folder `out`, or what is still missing of it.

    `on_progress` hears how many videos are there, at the start and after every one. Returns how many were
    written; 0 means that the set was complete. With several workers the caller's script needs the usual
    `__main__` guard.
    """
    # PyAV and OpenCV are too heavy for every start of the command line.
    from preprocess.demo_videos import folder, pool

    if workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")
    settings = settings or DemoSettings()
    folder.claim(out, settings)
    folder.remove_temporary_files(out)
    missing = folder.missing_clips(out, settings)
    num_there = settings.num_clips - len(missing)
    on_progress(num_there)
    with closing(pool.write_clips(out, missing, settings, workers)) as written:  # an interrupt ends the workers
        for num_written, _ in enumerate(written, start=1):
            on_progress(num_there + num_written)
    folder.write_splits(out, settings)
    return len(missing)
