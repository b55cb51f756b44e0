"""Many videos: what a clip store's tables cost (time, memory), and how listing, planning, indexing, ... grow.

The store has tables only: opening reads no video. Names have the length of Kinetics' names.
"""

import gc
import hashlib
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Annotated, Any

import typer

from covid_cmsf.clips.records import ClipRecord, FlowInfo, StoreInfo, info_to_json, write_manifest, write_split
from tools.benchmarks.growth import PARTS, fitted_exponents, make_folder, measure_growth, plot_growth
from tools.benchmarks.measure import JsonFile, print_results

__all__ = ["command", "make_store", "measure_growth", "measure_open"]  # by name, in new processes

NUM_CLASSES = 400


def command(
    videos: Annotated[str, typer.Option(help="Numbers of videos.")] = "1000,10000,60000,240000",
    plot: Annotated[Path | None, typer.Option(help="Also draw the growth: a PNG or SVG file.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Per number of videos: write, open, select train, start of a data loader's worker. Each in a new process.

    Then CPU seconds of listing, opening, planning, sampling, indexing and searching, and the power of n that fits.
    """
    results: dict[str, Any] = {}
    growth: dict[str, dict[int, float]] = {name: {} for name in PARTS}
    with tempfile.TemporaryDirectory() as folder:
        for number in map(int, videos.split(",")):
            store = Path(folder) / str(number)
            start = time.perf_counter()
            make_store(store, number)
            results[f"{number}_write_s"] = time.perf_counter() - start
            results |= {f"{number}_{name}": value for name, value in _in_new_process("measure_open", store).items()}
            collection, out = Path(folder) / "videos", Path(folder) / "out"
            make_folder(collection, number)
            measured = _in_new_process("measure_growth", collection, store, out)
            for name in PARTS:
                growth[name][number] = measured[name]
            shutil.rmtree(collection)
            shutil.rmtree(out)
    exponents = fitted_exponents(growth)
    results |= {f"{number}_{name}_grows_s": s for name, values in growth.items() for number, s in values.items()}
    results |= {f"exponent_{name}": exponent for name, exponent in exponents.items()}
    if plot is not None:
        plot_growth(growth, exponents, plot)
    print_results(results, json_file=json_file)


def _in_new_process(function: str, *paths: Path) -> dict[str, float]:
    """Call a function of this module that prints JSON, and return what it prints last."""
    arguments = ", ".join(repr(str(path)) for path in paths)
    script = f"from tools.benchmarks.scale import {function}; {function}({arguments})"
    ended = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    if ended.returncode != 0:
        raise RuntimeError(f"{function} failed: {ended.stderr}")
    values: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return values


def make_store(store: Path, num_videos: int) -> None:
    """Write a store without video files: a training and a validation subset, 400 classes."""
    (store / "splits").mkdir(parents=True)
    flow = FlowInfo(backend="numba", version="", parameters={}, bound=20.0)
    info = StoreInfo(modalities=("rgb", "flow"), short_edge=0, max_frames=0, quality=18, flow=flow)
    (store / "store.json").write_text(info_to_json(info), encoding="utf-8")
    records = (_make_record(number) for number in range(num_videos))
    write_manifest(store / "manifest.csv", records)
    ids = (_make_record(number).video_id for number in range(num_videos))
    write_split(store / "splits" / "1.csv", {v: "val" if i % 12 == 0 else "train" for i, v in enumerate(ids)})


def _make_record(number: int) -> ClipRecord:
    digest = hashlib.sha256(str(number).encode()).hexdigest()
    label = number % NUM_CLASSES
    name = f"playing instrument number {label}"
    video = digest[:11]  # as an id of YouTube
    video_id = f"{name}/{video}_{number % 300:06d}_{number % 300 + 10:06d}"
    return ClipRecord(
        video_id, video, name, label, 300, 299, 29.97, 340, 256, digest,
        source_bytes=2_000_000 + number, source_mtime_ns=1_700_000_000_123_456_789 + number,
        rgb_bytes=1_500_000 + number, flow_bytes=900_000 + number,
        rgb_sha256=digest[::-1], flow_sha256=digest[32:] + digest[:32], flow_bound=20.0,
    )  # fmt: skip


def measure_open(store: str) -> None:
    """Print seconds and megabytes of opening, selecting and pickling, as JSON."""
    import numpy  # noqa: F401 (imports are not counted)

    from covid_cmsf.clips.store import ClipStore
    from covid_cmsf.views.dataset import ViewDataset

    gc.collect()
    before, peak_before = _resident_mb(), _peak_mb()
    results: dict[str, float] = {}
    clips = _time("open", results, lambda: ClipStore.open(store))
    results["open_mb"] = _resident_mb() - before
    records = _time("select", results, lambda: clips.select("1", "train"))
    data = _time("dataset", results, lambda: ViewDataset(clips, records, modalities=("rgb", "flow")))
    results["dataset_mb"] = _resident_mb() - before
    results["peak_mb"] = _peak_mb() - peak_before
    # What a data loader sends when it starts a worker: the first time moves the records to shared memory.
    pickled = _time("first_worker", results, lambda: bytes(ForkingPickler.dumps(data)))
    pickled = _time("next_worker", results, lambda: bytes(ForkingPickler.dumps(data)))
    results["pickled_mb"] = len(pickled) / 1e6
    print(json.dumps(results))


def _time(name: str, results: dict[str, float], work: Callable[[], Any]) -> Any:
    start = time.perf_counter(), time.process_time()
    value = work()
    results[f"{name}_s"], results[f"{name}_cpu_s"] = time.perf_counter() - start[0], time.process_time() - start[1]
    return value


def _resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def _peak_mb() -> float:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6
