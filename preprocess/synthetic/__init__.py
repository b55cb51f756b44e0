"""Synthetic demo videos: a small data set in UCF-101's layout, generated from a seed.

A class is a motion of a kind of object. What misleads RGB (appearance, per group) and what misleads flow (camera,
speed and distractors, per clip) are drawn independently, so that each modality carries information that the other
lacks.
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
    """Write the missing videos of the data set into the folder `out`; return how many were written.

    `on_progress` gets the number of existing videos, at the start and after each new one. With several workers the
    calling script needs the usual `__main__` guard.
    """
    # Imported late: PyAV and OpenCV would slow down every start of the command line.
    from preprocess.synthetic import dataset

    if workers < 1:
        raise ValueError(f"workers is {workers}; it must be at least 1")
    config = config or DemoConfig()
    dataset.prepare_folder(out, config)
    dataset.remove_temporary_files(out)
    missing = dataset.missing_clips(out, config)
    num_existing = config.num_clips - len(missing)
    on_progress(num_existing)
    with closing(dataset.write_clips(out, missing, config, workers)) as written:  # an interrupt stops the workers
        for num_written, _ in enumerate(written, start=1):
            on_progress(num_existing + num_written)
    dataset.write_splits(out, config)
    return len(missing)
