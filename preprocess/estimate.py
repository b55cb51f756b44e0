"""Estimate the time of a run and the size of its store from a few videos."""

import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np

from covid_cmsf.clips.cuts import cut_times
from covid_cmsf.clips.decoders import header_seconds
from covid_cmsf.clips.records import StoreInfo
from preprocess.convert import StageError, convert
from preprocess.flow import FlowBackend
from preprocess.layouts import Video
from preprocess.sources import local_source


@dataclass(frozen=True)
class Estimate:
    """Time and size of the whole run, extrapolated by file size, and what was measured on the sample."""

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
    max_frames: int = 0,
) -> Estimate:
    """Convert up to `num_samples` videos of different sizes into a temporary folder, which is then deleted.

    Of each at most `max_frames` frames (0: all), where its header says how many it has.
    """
    sizes = {video: _num_bytes(video) for video in videos}
    by_size = sorted(videos, key=lambda video: (sizes[video], video.video_id))
    count = min(num_samples, len(by_size))
    sample = [by_size[(2 * i + 1) * len(by_size) // (2 * count)] for i in range(count)]
    seconds, bytes_written, num_frames, bytes_read, num_failed = 0.0, 0, 0, 0.0, 0
    limited = info.model_copy(update={"max_frames": min(filter(None, (info.max_frames, max_frames)), default=0)})
    cv2.setNumThreads(1)  # as in the workers
    if flow is not None:
        flow(np.random.default_rng(0).integers(0, 256, (2, 32, 32), dtype=np.uint8))  # compiles
    with tempfile.TemporaryDirectory() as folder:
        targets: dict[str, Path] = {modality: Path(folder) / f"{modality}.mp4" for modality in info.modalities}
        for video in sample:
            start = time.perf_counter()
            try:
                with local_source(video.path, video.member, Path(folder)) as source:
                    metadata = convert(source, targets, limited, decoder=decoder, flow=flow, cut=cut_times(video))
                    if not metadata.header_frames and metadata.num_frames == limited.max_frames:
                        start = time.perf_counter()
                        metadata = convert(source, targets, info, decoder=decoder, flow=flow, cut=cut_times(video))
            except StageError:
                num_failed += 1
                continue
            seconds += time.perf_counter() - start
            bytes_written += sum(target.stat().st_size for target in targets.values())
            num_frames += metadata.num_frames
            bytes_read += sizes[video] * metadata.num_frames / max(metadata.num_frames, metadata.header_frames)
    if not num_frames:
        raise ValueError(f"none of the {count} sampled videos can be read, for example {sample[0].describe()}")
    scale = sum(sizes.values()) / bytes_read
    return Estimate(
        hours=seconds * scale / num_workers / 3600,
        gigabytes=bytes_written * scale / 1e9,
        frames_per_second=num_frames / seconds,
        bytes_per_frame=bytes_written / num_frames / len(info.modalities),
        num_sampled=count,
        num_failed=num_failed,
    )


def _num_bytes(video: Video) -> float:
    """Return the size of the file; of a cut, its share of the file's length."""
    if video.member is not None:
        return video.member.num_bytes
    size = video.path.stat().st_size if video.path.exists() else 0
    if not video.cut_start and not video.cut_end:
        return size
    length = header_seconds(video.path)
    return size * (min(video.cut_end or length, length) - video.cut_start) / length if length else size
