"""What grows with the number of videos: listing, opening, planning, sampling, indexing, searching. Real code.

The CPU time of a part over the numbers of videos is fitted by a power; n log n gives 1.09 between 10,000 and 240,000.
"""

import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from covid_cmsf.clips.store import ClipStore
from covid_cmsf.config import find_config
from covid_cmsf.cotrain.run import load_plan, prepare_plan
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.features.inference import video_features
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.search.index import build_index, load_index, save_index
from covid_cmsf.search.query import search
from covid_cmsf.views.loader import EpochSampler
from preprocess.layouts.collection import find_videos, make_video_ids
from tools.benchmarks.features import made_up_provenance

BATCH, VALUES, QUERIES = 128, 128, 20
PARTS = ("list", "open", "plan", "sample", "index", "load_index", "query")
FITTED_FROM = 10_000  # videos; below, constant costs are most of the time


def make_folder(folder: Path, num_videos: int) -> None:
    """Make empty video files, 600 per folder."""
    for number in range(num_videos):
        if number % 600 == 0:
            below = folder / f"class {number // 600}"
            below.mkdir(parents=True)
        (below / f"v_{number:07d}.mp4").touch()


def measure_growth(videos: str, store: str, out: str) -> None:
    """Print the CPU seconds of every part for a folder of video files and a store, as JSON."""
    logging.disable(logging.WARNING)  # the plan's settings are for fewer videos
    torch.set_num_threads(1)
    results: dict[str, float] = {}
    clock = _Clock(results)
    make_video_ids(find_videos(Path(videos)))
    clock.stop("list")
    clips = ClipStore.open(store)
    clock.stop("open")
    path = find_config("plans", "demo")
    changes = [f"defaults.clips={json.dumps(store)}", "evaluation.query=val", "defaults.runtime.cache_gb=0"]
    prepare_plan(load_plan(path, changes), Path(out) / "plan", plan_dir=path.parent)
    clock.stop("plan")
    sampler = EpochSampler(clips.records, batch_size=BATCH, seed=0)
    assert sum(map(len, sampler)) == len(clips.records) // BATCH * BATCH
    clock.stop("sample")
    features = _features(clips)
    clock.restart()
    save_index(Path(out) / "index", build_index({"rgb": features}, clips))
    clock.stop("index")
    del features
    index = load_index(Path(out) / "index")
    clock.stop("load_index")
    for vector in index.windows["rgb"].vectors[:QUERIES].split(1):
        search(index, {"rgb": vector})
    clock.stop("query")
    results["query"] /= QUERIES
    print(json.dumps(results))


def fitted_exponents(seconds: Mapping[str, Mapping[int, float]]) -> dict[str, float]:
    """Return the exponent of each part's CPU seconds, given by the number of videos, from FITTED_FROM videos on."""
    found = {}
    for name, values in seconds.items():
        points = [(number, value) for number, value in values.items() if number >= FITTED_FROM]
        if len(points) > 1:
            numbers, times = np.log(np.array(points)).T
            found[name] = float(np.polyfit(numbers, times, 1)[0])
    return found


def plot_growth(seconds: Mapping[str, Mapping[int, float]], exponents: Mapping[str, float], path: Path) -> None:
    """Draw CPU seconds over the number of videos, both logarithmic, and n log n from the slowest part's last point."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8.5, 4.5))
    for name, values in seconds.items():
        label = f"{name}, exponent {exponents[name]:.2f}" if name in exponents else name
        axes.loglog(list(values), list(values.values()), marker="o", label=label)
    numbers = np.array(sorted({number for values in seconds.values() for number in values}))
    growth = numbers * np.log(numbers)
    slowest = max(values[int(numbers[-1])] for values in seconds.values())
    axes.loglog(numbers, slowest * growth / growth[-1], color="gray", linestyle="--", label="n log n")
    axes.set_xlabel("videos")
    axes.set_ylabel("CPU seconds")
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5))  # the lines fill the axes
    figure.tight_layout()
    figure.savefig(path, dpi=120)


class _Clock:
    def __init__(self, results: dict[str, float]) -> None:
        self._results = results
        self.restart()

    def restart(self) -> None:
        self._start = time.process_time()

    def stop(self, name: str) -> None:
        """Record the CPU seconds since the last stop."""
        self._results[name] = time.process_time() - self._start
        self.restart()


def _features(clips: ClipStore) -> Features:
    number = len(clips.records)
    windows = torch.randn(number, VALUES, generator=torch.Generator().manual_seed(0))
    videos = torch.arange(number)
    return Features(
        videos=VideoTable.from_records(clips.records, ["train"] * number),
        features=video_features(windows, videos, number),
        windows=windows,
        window_videos=videos,
        window_starts=torch.zeros(number, dtype=torch.int64),
        provenance=made_up_provenance(),
    )
