"""Demo videos: a small data set in UCF-101's layout, made from nothing but a seed.

A class is a motion of a kind of object. What misleads RGB (looks, by group) and what misleads flow (the
camera, speed and distractors, by clip) are drawn apart, so that each modality can teach the other what it
can't see itself.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from preprocess.synthetic.config import CLASS_NAMES, DIFFICULTIES, DemoConfig

__all__ = ["CLASS_NAMES", "DIFFICULTIES", "DemoConfig", "generate"]


def generate(
    out: Path,
    config: DemoConfig | None = None,
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
    from preprocess.synthetic import dataset

    if workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")
    config = config or DemoConfig()
    dataset.prepare_folder(out, config)
    dataset.remove_temporary_files(out)
    missing = dataset.missing_clips(out, config)
    num_there = config.num_clips - len(missing)
    on_progress(num_there)
    with closing(dataset.write_clips(out, missing, config, workers)) as written:  # an interrupt ends the workers
        for num_written, _ in enumerate(written, start=1):
            on_progress(num_there + num_written)
    dataset.write_splits(out, config)
    return len(missing)
