"""Two augmented 32-frame RGB views at 128 px: ours from clip stores, CoCLR's PIL pipeline from JPEG frames.

Both take the same real clips, the same mixture of strong and weak views, one thread, one run, turn by turn.
"""

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import cv2
import torch
import typer
from torch import Tensor

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.cached import CachedClips
from covid_cmsf.clips.decoded import DecodedClips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from covid_cmsf.views.loader import ViewLoader
from tools.benchmarks import pil_views
from tools.benchmarks.measure import JsonFile, print_results

CONFIG = ViewConfig(modalities=("rgb",), pairing="coclr")


class TimedClips(Clips):
    """Clips that know how long reading them took."""

    def __init__(self, clips: ClipStore) -> None:
        self._clips, self.seconds = clips, 0.0
        self.records, self.splits, self.flow_bound = clips.records, clips.splits, clips.flow_bound
        self.modalities = clips.modalities

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        start = time.perf_counter()
        raw = self._clips.read_raw(record, modality, frame_indices)
        self.seconds += time.perf_counter() - start
        return raw


def make_store(videos: list[Path], folder: Path, short_edge: int) -> ClipStore:
    """An RGB store of these videos."""
    source = folder / f"videos{short_edge}"
    source.mkdir()
    for video in videos:
        (source / video.name).symlink_to(video.resolve())
    out = folder / f"clips{short_edge}"
    options = [
        str(source),
        "--out",
        str(out),
        "--layout",
        "flat",
        "--modalities",
        "rgb",
        "--short-edge",
        str(short_edge),
    ]
    subprocess.run([sys.executable, "-m", "preprocess", *options], check=True, capture_output=True)
    return ClipStore.open(out)


def encode_jpegs(store: ClipStore) -> list[list[bytes]]:
    """Every video as JPEG frames of quality 95, in memory: the peer pays for decoding, not for its disk."""
    videos_as_jpegs = []
    for record in store.records:
        frames = store.read_raw(record, "rgb", list(range(record.num_frames))).permute(0, 2, 3, 1).numpy()
        encoded = (cv2.imencode(".jpg", frame[..., ::-1], [cv2.IMWRITE_JPEG_QUALITY, 95])[1] for frame in frames)
        videos_as_jpegs.append([data.tobytes() for data in encoded])
    return videos_as_jpegs


def throughput(data: ViewDataset, num_workers: int, num_batches: int = 12) -> float:
    """Videos (two views each) a second through the loader, after its workers have started."""
    loader = ViewLoader(data, batch_size=4, num_workers=num_workers, repeat=20)
    batches = loader.epoch(0)
    for _ in range(2 * num_workers + 1):
        next(batches)
    start = time.perf_counter()
    for _ in range(num_batches):
        next(batches)
    speed = 4 * num_batches / (time.perf_counter() - start)
    batches.close()
    return speed


def compare_paths(data: ViewDataset, deferred: ViewDataset, *, batch_size: int, num_batches: int) -> dict[str, float]:
    """Milliseconds per sample of the CPU's path, sample by sample, and of the GPU's, a whole batch at once, on a CPU.

    Both make the same draws, turn by turn. Their values differ by a level of 255 at most before colors change.
    """
    seconds = {"by_sample": 0.0, "by_batch": 0.0}
    for number in range(-1, num_batches):  # the first one warms up
        keys = [
            SampleKey(0, batch_size * (number + 1) + place, (batch_size * number + place) % len(data))
            for place in range(batch_size)
        ]
        for name, side in (("by_sample", data), ("by_batch", deferred)):
            start = time.perf_counter()
            side.collate_fn()([side[key] for key in keys]).to("cpu")
            seconds[name] += (time.perf_counter() - start) * (number >= 0)
    return {name: 1e3 * value / (batch_size * num_batches) for name, value in seconds.items()}


def command(
    videos: Path = typer.Argument(..., help="Folder of real video files."),
    samples: int = typer.Option(60, help="Samples (two views each) for every side."),
    clips: int = typer.Option(12, help="Videos to use."),
    cache_gb: float = typer.Option(
        0.0, help="Also measure from this much memory of decoded clips, and from a file of them."
    ),
    json_file: JsonFile = None,
) -> None:
    """Two augmented RGB views: ours against a PIL pipeline of the same operations."""
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    paths = sorted(path for path in videos.rglob("*") if path.suffix in (".avi", ".mp4"))
    paths = paths[:: max(1, len(paths) // clips)][:clips]
    if not paths:
        raise typer.BadParameter(f"no .avi or .mp4 below {videos}")
    with tempfile.TemporaryDirectory() as folder:
        stores = {"native": make_store(paths, Path(folder), 0), "short160": make_store(paths, Path(folder), 160)}
        jpegs = encode_jpegs(stores["native"])
        timed = {name: TimedClips(store) for name, store in stores.items()}
        datasets = {name: ViewDataset(clips_, clips_.records, CONFIG, seed=0) for name, clips_ in timed.items()}
        seconds = {name: {"decode": 0.0, "augment": 0.0} for name in ("pil", *datasets)}
        rng = random.Random(0)
        for number in range(-3, samples):  # the first three warm up
            if number == 0:
                for entry in seconds.values():
                    entry.update(decode=0.0, augment=0.0)
            video = number % len(paths)
            usable = len(jpegs[video]) - pil_views.LENGTH
            start = time.perf_counter()
            first, second = (pil_views.decode(jpegs[video], rng.randint(0, usable)) for _ in range(2))
            middle = time.perf_counter()
            pil_views.two_views(first, second, rng)
            seconds["pil"]["decode"] += middle - start
            seconds["pil"]["augment"] += time.perf_counter() - middle
            for name, data in datasets.items():
                timed[name].seconds = 0.0
                start = time.perf_counter()
                data[SampleKey(0, number + 3, video)]
                total = time.perf_counter() - start
                seconds[name]["decode"] += timed[name].seconds
                seconds[name]["augment"] += total - timed[name].seconds
        results: dict[str, float | int] = {"samples": samples, "videos": len(paths)}
        for name, entry in seconds.items():
            for stage, value in entry.items():
                results[f"{name}_{stage}_ms"] = 1e3 * value / samples
            results[f"{name}_total_ms"] = 1e3 * sum(entry.values()) / samples
        for name in datasets:
            results[f"{name}_ratio"] = results["pil_total_ms"] / results[f"{name}_total_ms"]
        for name, store in stores.items():
            data = ViewDataset(store, store.records, CONFIG, seed=0)
            deferred = ViewDataset(store, store.records, CONFIG, seed=0, defer=True)
            paths_ms = compare_paths(data, deferred, batch_size=8, num_batches=max(1, samples // 8))
            results |= {f"{name}_{path}_ms": value for path, value in paths_ms.items()}
        view_bytes = 2 * 3 * CONFIG.length * CONFIG.size**2 * 4
        sources: dict[str, Clips] = dict(stores)
        if cache_gb:
            store = stores["short160"]
            sources["cached160"] = CachedClips(store, store.records, ["rgb"], gigabytes=cache_gb)
            sources["decoded160"] = DecodedClips(store, store.records, ["rgb"], folder=Path(folder) / "decoded")
        for name, source in sources.items():
            data = ViewDataset(source, source.records, CONFIG, seed=0)
            for num_workers in (1, 2):
                speed = throughput(data, num_workers)
                results[f"{name}_clips_per_s_{num_workers}_workers"] = 2 * speed
                results[f"{name}_MB_per_s_{num_workers}_workers"] = speed * view_bytes / 1e6
    print_results(results, json_file=json_file)
