"""TV-L1: milliseconds a pair of our backends and of OpenCV, and how far their flows are apart."""

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import cv2
import numpy as np
import typer

from covid_cmsf.clips.decoders import open_video
from preprocess.flow import BACKENDS, FlowBackend, backend_version, make_flow, to_gray
from tools.benchmarks.measure import JsonFile, print_results

REFERENCE = "opencv"
Timing = tuple[float, float]  # seconds by the clock and of CPU


def command(
    video: Annotated[Path, typer.Argument(help="any video; TV-L1 takes about a second a pair at 320x240")],
    pairs: Annotated[int, typer.Option(min=1, help="pairs of frames, spread over the video")] = 5,
    backends: Annotated[str, typer.Option(help=f"some of {','.join(BACKENDS)}")] = "numba,numba-fast,opencv",
    threads: Annotated[int, typer.Option(min=1, help="threads of OpenCV and torch; numba uses one")] = 1,
    repeats: Annotated[int, typer.Option(min=1, help="runs of our backends a pair; the median counts")] = 3,
    json_file: JsonFile = None,
) -> None:
    """TV-L1: ours against OpenCV's, alternately on the same pairs after a warm-up."""
    names = [REFERENCE] + [name for name in backends.split(",") if name != REFERENCE]
    if unknown := set(names) - set(BACKENDS):
        raise typer.BadParameter(f"unknown backend {', '.join(unknown)}; choose from {', '.join(BACKENDS)}")
    frames = read_pairs(video, pairs)
    cv2.setNumThreads(threads)
    if "torch" in names:
        import torch

        torch.set_num_threads(threads)
    flows = {name: make_flow(name) for name in names}
    first_call = {name: _time_flow(flow, frames[0][:, :32, :32])[0] for name, flow in flows.items()}  # compiles
    runs: dict[str, list[Timing]] = {name: [] for name in names}
    distances: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for pair in frames:
        results = {}
        for name, flow in flows.items():
            timed = [_time_flow(flow, pair) for _ in range(1 if name == REFERENCE else repeats)]
            wall = statistics.median(run[0] for run in timed)
            cpu = statistics.median(run[1] for run in timed)
            runs[name].append((wall, cpu))
            results[name] = timed[-1][2]
        for name in names:
            distances[name].append(np.linalg.norm(results[name] - results[REFERENCE], axis=1))
    print_results(_summary(frames, flows, first_call, runs, distances, threads), json_file=json_file)


def read_pairs(video: Path, count: int) -> list[np.ndarray]:
    """`count` gray pairs (2, H, W) of neighboring frames, spread evenly over the video."""
    if not video.is_file():
        raise typer.BadParameter(f"no video {video}")
    with open_video(video) as reader:
        length = sum(1 for _ in reader.frames())
    if length < 2:
        raise typer.BadParameter(f"{video} has {length} frames; a pair needs 2")
    starts = np.unique(np.linspace(0, length - 2, count).round().astype(int))
    frame_indices = set(starts) | set(starts + 1)
    with open_video(video) as reader:
        gray_frames = {
            number: to_gray(frame) for number, frame in enumerate(reader.frames()) if number in frame_indices
        }
    return [np.stack([gray_frames[start], gray_frames[start + 1]]) for start in starts]


def _time_flow(flow: FlowBackend, pair: np.ndarray) -> tuple[float, float, np.ndarray]:
    """Seconds by the clock, seconds of CPU, and the flow."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = flow(np.ascontiguousarray(pair))
    return time.perf_counter() - wall, time.process_time() - cpu, result


def _summary(
    frames: list[np.ndarray],
    flows: dict[str, FlowBackend],
    first_call: dict[str, float],
    runs: dict[str, list[Timing]],
    distances: dict[str, list[np.ndarray]],
    threads: int,
) -> dict[str, Any]:
    """One flat mapping; differences in pixels, over all pixels of all pairs. On a busy machine, look at the CPU."""
    height, width = frames[0].shape[1:]
    results: dict[str, Any] = {"frame_size": f"{width}x{height}", "pairs": len(frames), "threads": threads}
    wall, cpu = ({name: sum(run[i] for run in runs[name]) for name in flows} for i in range(2))
    for name in flows:
        results[f"{name}_version"] = backend_version(name)
        results[f"{name}_ms_a_pair"] = 1000 * wall[name] / len(frames)
        results[f"{name}_cpu_ms_a_pair"] = 1000 * cpu[name] / len(frames)
    for name in flows:
        if name != REFERENCE:
            ratios = [theirs[1] / ours[1] for theirs, ours in zip(runs[REFERENCE], runs[name], strict=True)]
            results[f"{name}_ratio"] = wall[REFERENCE] / wall[name]
            results[f"{name}_cpu_ratio"] = cpu[REFERENCE] / cpu[name]
            results[f"{name}_cpu_ratio_worst_pair"] = min(ratios)
            results[f"{name}_mean_difference_px"] = float(np.mean(distances[name]))
            results[f"{name}_p95_difference_px"] = float(np.percentile(distances[name], 95))
            results[f"{name}_first_call_s"] = first_call[name]
    return results
