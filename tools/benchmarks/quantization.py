"""How much of the motion is lost when flow is stored: rounding to levels alone, and with video coding."""

import statistics
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from covid_cmsf.clips.decoders import open_video
from covid_cmsf.clips.flow_codec import COCLR_LEVELS, FlowLevels, motion_bound, size_bound, stack_components
from preprocess.convert import stored_frames
from preprocess.encode import FLOW_CRF_OFFSET, ClipWriter
from preprocess.flow import make_flow, to_gray
from tools.benchmarks.measure import JsonFile, print_results

Flow = NDArray[np.float32]


def command(
    videos: Annotated[Path, typer.Argument(help="A folder of videos.")],
    number: Annotated[int, typer.Option(help="Videos, spread over the sorted list.")] = 8,
    frames: Annotated[int, typer.Option(help="First frames of each.")] = 25,
    edges: Annotated[str, typer.Option(help="Short edges, in pixels.")] = "60,240",
    quality: Annotated[int, typer.Option(help="As of `covid-cmsf preprocess`.")] = 18,
    backend: Annotated[str, typer.Option(help="Of TV-L1.")] = "numba",
    json_file: JsonFile = None,
) -> None:
    """Errors as shares of a video's mean motion, median over the videos, and bytes per pair of frames."""
    paths = sorted(path for path in videos.rglob("*") if path.suffix in (".avi", ".mp4"))
    chosen = [paths[i * len(paths) // number] for i in range(number)]
    results: dict[str, Any] = {}
    for edge in map(int, edges.split(",")):
        flows = [_compute_flow(path, edge, frames, backend) for path in chosen]
        results[f"{edge}_mean_motion_px"] = statistics.mean(_length(flow) for flow in flows)
        for name in ("bound20_256levels", "size_255levels", "auto_255levels"):
            rows = [_measure(flow, _levels(name, flow), quality) for flow in flows]
            for key in rows[0]:
                results[f"{edge}_{name}_{key}"] = statistics.median(row[key] for row in rows)
    print_results(results, json_file=json_file)


def _compute_flow(path: Path, edge: int, frames: int, backend: str) -> Flow:
    with open_video(path) as reader:
        gray = [to_gray(frame) for frame in stored_frames(reader, short_edge=edge, max_frames=frames)]
    return make_flow(backend)(np.stack(gray))


def _levels(name: str, flow: Flow) -> FlowLevels:
    height, width = flow.shape[-2:]
    if name.startswith("bound20"):
        return COCLR_LEVELS
    return FlowLevels(size_bound(width, height) if name.startswith("size") else motion_bound(flow, width, height))


def _measure(flow: Flow, levels: FlowLevels, quality: int) -> dict[str, float]:
    """Return the errors of one video, and what the codec does to the pixels at the level of no motion."""
    rounded = levels.encode(flow)
    decoded, num_bytes = _encode_decode(rounded, max(0, quality - FLOW_CRF_OFFSET))
    still = rounded == 128
    motion = _length(flow)
    return {
        "rounding": _length(levels.decode(rounded) - flow) / motion,
        "with_codec": _length(levels.decode(decoded) - flow) / motion,
        "zero_changed": float((decoded[still] != 128).mean()) if still.any() else 0.0,
        "zero_changed_by_2": float((np.abs(decoded[still].astype(int) - 128) > 1).mean()) if still.any() else 0.0,
        "bytes_per_pair": num_bytes / len(flow),
    }


def _encode_decode(rounded: NDArray[np.uint8], crf: int) -> tuple[NDArray[np.uint8], int]:
    count, _, height, width = rounded.shape
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "flow.mp4"
        with ClipWriter(path, fps=Fraction(25), width=width, height=2 * height, crf=crf, tune_psnr=True) as writer:
            for image in stack_components(rounded):
                writer.write_luma(np.ascontiguousarray(image))
        with open_video(path) as video:
            return video.read_luma(range(count)).reshape(rounded.shape), path.stat().st_size


def _length(flow: Flow) -> float:
    return float(np.hypot(flow[:, 0], flow[:, 1]).mean())
