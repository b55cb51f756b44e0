"""How long a run will take and how large the store will be, from a few videos."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from covid_cmsf.clips.store_info import StoreInfo
from preprocess.convert import StageError, convert
from preprocess.flow import FlowBackend
from preprocess.layouts import Video


@dataclass(frozen=True)
class Estimate:
    """Extrapolated by the size of the video files; the sample's own figures beside it."""

    hours: float
    gigabytes: float
    frames_per_second: float  # of one worker
    bytes_per_frame: float  # of one modality
    num_sampled: int
    num_failed: int


def estimate(
    videos: list[Video],
    info: StoreInfo,
    *,
    decoder: str,
    flow: FlowBackend | None,
    num_workers: int,
    num_samples: int = 5,
) -> Estimate:
    """Converts up to `num_samples` videos of different sizes into a temporary folder and throws them away."""
    sizes = {video: video.path.stat().st_size if video.path.exists() else 0 for video in videos}
    ordered = sorted(videos, key=lambda video: (sizes[video], video.video_id))
    count = min(num_samples, len(ordered))
    sample = [ordered[(2 * i + 1) * len(ordered) // (2 * count)] for i in range(count)]
    seconds, written, frames, read, failed = 0.0, 0, 0, 0, 0
    cv2.setNumThreads(1)  # as in the workers
    if flow is not None:
        flow(np.random.default_rng(0).integers(0, 256, (2, 32, 32), dtype=np.uint8))  # compiles
    with tempfile.TemporaryDirectory() as folder:
        targets: dict[str, Path] = {modality: Path(folder) / f"{modality}.mp4" for modality in info.modalities}
        for video in sample:
            start = time.perf_counter()
            try:
                facts = convert(video.path, targets, info, decoder=decoder, flow=flow)
            except StageError:
                failed += 1
                continue
            seconds += time.perf_counter() - start
            written += sum(target.stat().st_size for target in targets.values())
            frames += facts.num_frames
            read += sizes[video]
    if not frames:
        raise ValueError(f"none of the {count} sampled videos can be read, for example {sample[0].path}")
    share = sum(sizes.values()) / read
    return Estimate(
        hours=seconds * share / num_workers / 3600,
        gigabytes=written * share / 1e9,
        frames_per_second=frames / seconds,
        bytes_per_frame=written / frames / len(info.modalities),
        num_sampled=count,
        num_failed=failed,
    )
