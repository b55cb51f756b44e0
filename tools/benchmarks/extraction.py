"""What a second modality costs: CPU time and bytes a frame, beyond those of RGB alone.

For each clip a store is made with RGB alone, and with RGB and each kind of motion. What the second takes longer is the
cost of extraction: motion is computed, resized, quantized and encoded. `compute` is the part of it in which flow is
computed or motion vectors are read. Frame differences are computed from RGB in every view and are not stored: their
cost is that of the subtraction, and of one more frame of a clip that is read.
"""

import time
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import cv2
import numpy as np
import typer

from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.records import StoreInfo
from preprocess.config import make_store_info
from preprocess.convert import convert, resize_flow, stored_frames, stored_size
from preprocess.flow import ALGORITHMS, BACKENDS, FlowBackend, make_flow
from preprocess.motion_vectors import MotionReader
from tools.benchmarks.measure import JsonFile, print_results

ENDINGS = (".avi", ".mp4", ".mkv", ".mov", ".webm")
MOTION, DIFFERENCE = "motion", "rgbdiff"
WITHOUT_WEIGHTS = (*BACKENDS, *(name for name in ALGORITHMS if name != "raft"))


def command(
    videos: Annotated[list[Path], typer.Argument(help="video files, or folders of them")],
    backends: Annotated[str, typer.Option(help="flow backends to measure")] = "numba-fast,dis,farneback",
    short_edge: Annotated[int, typer.Option(min=0, help="of stored frames, 0 = no resize")] = 60,
    limit: Annotated[int, typer.Option(min=1, help="clips, spread over all that are found")] = 20,
    max_frames: Annotated[int, typer.Option(min=2, help="frames of each clip")] = 100,
    json_file: JsonFile = None,
) -> None:
    """CPU time and bytes a frame of flow, motion vectors and frame differences, alternately on the same clips."""
    names = backends.split(",")
    if unknown := set(names) - set(WITHOUT_WEIGHTS):
        raise typer.BadParameter(f"unknown backend {', '.join(unknown)}; choose from {', '.join(WITHOUT_WEIGHTS)}")
    clips = choose_clips(videos, limit)
    cv2.setNumThreads(1)
    flows = {name: TimedFlow(make_flow(name)) for name in names}
    for flow in flows.values():  # compiles
        flow(np.zeros((2, 32, 32), np.uint8))
        flow.seconds = 0.0
    costs, difference = {name: Cost() for name in ("rgb", *names, MOTION)}, Cost()
    num_frames = 0
    for clip in clips:
        num_frames += _measure(clip, costs, flows, short_edge=short_edge, max_frames=max_frames)
        difference.seconds += _time_differences(clip, short_edge=short_edge, max_frames=max_frames)
    difference.compute = difference.seconds
    for name, flow in flows.items():
        costs[name].compute = flow.seconds
    results: dict[str, Any] = {"clips": len(clips), "frames": num_frames, "short_edge": short_edge}
    extra = {name: cost.minus(costs["rgb"]) for name, cost in costs.items() if name != "rgb"}
    for name, cost in {"rgb": costs["rgb"], **extra, DIFFERENCE: difference}.items():
        results |= {f"{name}_{key}": value for key, value in cost.per_frame(num_frames).items()}
    print_results(results, json_file=json_file)


class TimedFlow:
    """A flow backend whose CPU time is added up."""

    def __init__(self, flow: FlowBackend) -> None:
        self.flow, self.name, self.seconds = flow, flow.name, 0.0

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        start = time.process_time()
        flow = self.flow(frames)
        self.seconds += time.process_time() - start
        return flow


@dataclass
class Cost:
    """CPU seconds of making a store, the part of them that computes motion, and bytes of the store."""

    seconds: float = 0.0
    compute: float = 0.0
    num_bytes: int = 0

    def minus(self, rgb: "Cost") -> "Cost":
        """Return what this costs beyond RGB alone."""
        return Cost(self.seconds - rgb.seconds, self.compute, self.num_bytes - rgb.num_bytes)

    def per_frame(self, num_frames: int) -> dict[str, float]:
        """Return milliseconds of CPU and bytes a frame."""
        return {
            "cpu_ms_a_frame": 1000 * self.seconds / num_frames,
            "compute_cpu_ms_a_frame": 1000 * self.compute / num_frames,
            "bytes_a_frame": self.num_bytes / num_frames,
        }


def choose_clips(videos: list[Path], limit: int) -> list[Path]:
    """Return `limit` of the video files, evenly spread over their names in order."""
    found: list[Path] = []
    for path in videos:
        if not path.exists():
            raise typer.BadParameter(f"no video or folder {path}")
        found += sorted(one for one in path.rglob("*") if one.suffix.lower() in ENDINGS) if path.is_dir() else [path]
    if not found:
        raise typer.BadParameter(f"no video files in {', '.join(map(str, videos))}; endings: {' '.join(ENDINGS)}")
    return [found[number] for number in sorted(set(np.linspace(0, len(found) - 1, limit).round().astype(int)))]


def _measure(
    clip: Path, costs: dict[str, Cost], flows: dict[str, TimedFlow], *, short_edge: int, max_frames: int
) -> int:
    """Add what one clip costs; return its number of frames."""
    num_frames = 0
    for name, cost in costs.items():
        modalities = {"rgb": "rgb", MOTION: "rgb,motion"}.get(name, "rgb,flow")
        info = _store_info(modalities, name if name in flows else "dis", short_edge=short_edge, max_frames=max_frames)
        with TemporaryDirectory() as folder:
            targets: dict[str, Path] = {one: Path(folder, f"{one}.mp4") for one in info.modalities}
            start = time.process_time()
            made = convert(clip, targets, info, decoder="av", flow=flows.get(name))
            cost.seconds += time.process_time() - start
            cost.num_bytes += sum(path.stat().st_size for path in targets.values())
            num_frames = made.num_frames
    costs[MOTION].compute += _time_motion(clip, short_edge=short_edge, max_frames=max_frames)
    return num_frames


def _store_info(modalities: str, backend: str, *, short_edge: int, max_frames: int) -> StoreInfo:
    return make_store_info(
        Path("none"),
        modalities=modalities,
        short_edge=short_edge,
        max_frames=max_frames,
        quality=18,
        flow_backend=backend,
        flow_bound="size",
        flow_size="stored",
        flow_parameters="",
        software="",
    )


def _time_motion(clip: Path, *, short_edge: int, max_frames: int) -> float:
    """CPU seconds of reading and resizing the motion vectors; the file is decoded for them once more."""
    start = time.process_time()
    with MotionReader(clip) as reader:
        for motion in islice(reader.motion(), max_frames - 1):
            resize_flow(motion[None], stored_size(motion.shape[2], motion.shape[1], short_edge))
    return time.process_time() - start


def _time_differences(clip: Path, *, short_edge: int, max_frames: int) -> float:
    """CPU seconds of subtracting each stored frame from the next, in floats."""
    with open_video(clip) as reader:
        frames = list(stored_frames(reader, short_edge=short_edge, max_frames=max_frames))
    start = time.process_time()
    for previous, frame in pairwise(frames):
        np.subtract(frame, previous, dtype=np.float32)
    return time.process_time() - start
