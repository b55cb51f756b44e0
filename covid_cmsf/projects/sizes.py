"""The size of a plan: encoder, clips, memory bank, epochs from the number and length of the videos and the machine.

Two points are anchors, the rest is drawn between and beyond them:

- a CPU and 456 clips of UCF-101 (170 frames): the recipe of configs/plans/real/ucf101-ten.yaml, with 4 frames of 48
  pixels, batches of 64, 100 epochs of InfoNCE, 90 of CMSF, n = 20, k = 5, a bank of 384;
- a GPU and the 9,537 training clips of UCF-101: S3D, 32 frames of 128 pixels, 400 epochs and 100 (Han et al. 2020;
  Tejankar et al. 2021).

The number of steps grows with the square root of the number of videos: twice as many videos give 1.4 times the steps.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

from covid_cmsf.clips.sampling import clip_span

MIN_VIDEOS = 16  # below, neighbors and negatives are always the same few videos
BASE_FPS = 25.0  # of the videos that the strides were chosen on
MIN_STEPS_PER_EPOCH = 7  # smaller collections are repeated
MAX_BANK = 8192
MEMORY_PER_CLIP = 0.6  # gigabytes of a GPU per S3D clip of 32 x 128 x 128 in training; an estimate, not measured
CACHE_FRACTION = 0.35  # of the memory, for decoded clips

Preset = Literal["cpu", "cpu-small", "gpu", "gpu-small"]


@dataclass(frozen=True)
class Footage:
    """What a plan's size depends on: the videos."""

    num_videos: int
    short_frames: int  # 10th percentile of frames per video
    median_frames: int
    fps: float = BASE_FPS
    frame_bytes: int = 3 * 80 * 60  # of a decoded RGB frame, as stored


@dataclass(frozen=True)
class Machine:
    """What a plan's size depends on: the device, its memory, and how many cores there are."""

    device: Literal["cpu", "cuda"]
    memory_gb: float = 8.0  # of the GPU, or of the machine
    cores: int = 2


@dataclass(frozen=True)
class Anchor:
    """Measured or published sizes at one number of videos; `preset` names the encoder and its views."""

    encoder: str
    length: int
    size: int
    stride: int  # at 25 frames per second
    num_videos: int
    pretrain_epochs: float
    cmsf_epochs: float
    max_passes: float  # over every video, in InfoNCE
    max_steps: int  # of InfoNCE
    num_candidates: int  # n


ANCHORS: dict[Preset, Anchor] = {
    "cpu": Anchor("c21d_tiny", 4, 48, 4, 456, 100, 90, 200, 60_000, 20),
    "cpu-small": Anchor("c21d_tiny", 4, 36, 4, 456, 100, 90, 200, 60_000, 20),
    "gpu": Anchor("s3d", 32, 128, 1, 9537, 400, 100, 400, 200_000, 10),
    "gpu-small": Anchor("s3d", 16, 112, 2, 9537, 400, 100, 400, 200_000, 10),
}
SHORT_EDGE = {"cpu": 60, "cuda": 160}  # stored pixels: a quarter more than the views'


@dataclass(frozen=True)
class PlanSize:
    """The numbers of a plan."""

    preset: Preset
    encoder: str
    length: int
    stride: int
    size: int
    batch_size: int
    repeat: int
    bank_size: int
    num_candidates: int  # n
    k: int
    pretrain_epochs: int
    cmsf_epochs: int
    rounds: int
    windows: int
    cache_gb: float
    workers: int
    threads: int
    parallel: int

    @property
    def on_gpu(self) -> bool:
        """Whether the sizes are those of a GPU."""
        return self.preset.startswith("gpu")

    def steps_per_epoch(self, num_videos: int) -> int:
        """Return the batches of an epoch."""
        return num_videos * self.repeat // self.batch_size


def size_plan(footage: Footage, machine: Machine, *, preset: Preset | None = None) -> PlanSize:
    """Return a plan that suits the videos and the machine; `preset` chooses smaller networks or views."""
    if footage.num_videos < MIN_VIDEOS:
        raise ValueError(f"{footage.num_videos} videos: a plan needs at least {MIN_VIDEOS}")
    on_gpu = machine.device == "cuda"
    preset = preset or ("gpu" if on_gpu else "cpu")
    anchor = ANCHORS[preset]
    length, stride = clip_shape(footage, anchor)
    batch_size = gpu_batch(footage.num_videos, machine.memory_gb) if on_gpu else cpu_batch(footage.num_videos)
    repeat = max(1, -(-MIN_STEPS_PER_EPOCH * batch_size // footage.num_videos))
    repeat = 1 if footage.num_videos >= anchor.num_videos else repeat
    passes = num_passes(footage.num_videos, anchor, batch_size)
    n, k = neighbors(footage.num_videos, anchor.num_candidates)
    bank = bank_size(footage.num_videos, batch_size)
    # The bank is filled before CMSF trains: within a tenth of the run.
    fill_epochs = -(-10 * bank // (batch_size * (footage.num_videos * repeat // batch_size)))
    pretrain_epochs = max(2, round(passes / repeat))
    ratio = anchor.cmsf_epochs / anchor.pretrain_epochs
    return PlanSize(
        preset=preset,
        encoder=anchor.encoder,
        length=length,
        stride=stride,
        size=anchor.size,
        batch_size=batch_size,
        repeat=repeat,
        bank_size=bank,
        num_candidates=n,
        k=k,
        pretrain_epochs=pretrain_epochs,
        cmsf_epochs=max(fill_epochs, 1, round(passes * ratio / repeat)),
        rounds=1,
        windows=num_windows(footage, length, stride),
        cache_gb=cache_size(footage, machine),
        workers=min(8, max(2, machine.cores - 1)) if on_gpu else 0,
        threads=0 if on_gpu else max(1, min(8, machine.cores // 2)),
        parallel=2 if not on_gpu and machine.cores > 1 else 1,
    )


def clip_shape(footage: Footage, anchor: Anchor) -> tuple[int, int]:
    """Return length and stride of a clip: the anchor's time span, but at most half of a short video.

    So a video has two clips without common frames. First the stride falls, then the length.
    """
    stride = max(1, round(anchor.stride * footage.fps / BASE_FPS))
    room = max(2, footage.short_frames // 2)
    while stride > 1 and clip_span(anchor.length, stride) > room:
        stride -= 1
    length = anchor.length
    while length > 4 and clip_span(length, stride) > room:
        length //= 2
    return length, stride


def cpu_batch(num_videos: int) -> int:
    """Return 64, or less for few videos: a batch should not have a video several times."""
    return next((size for size in (64, 32, 16) if num_videos >= 2 * size), 8)


def gpu_batch(num_videos: int, memory_gb: float) -> int:
    """Return the largest power of two from 8 to 64 that fits the memory of the GPU, and the number of videos."""
    fits = min(memory_gb / MEMORY_PER_CLIP, num_videos / 2)
    return max(8, min(64, 1 << int(math.log2(max(8.0, fits)))))


def num_passes(num_videos: int, anchor: Anchor, batch_size: int) -> float:
    """Return how often InfoNCE sees every video: the steps grow with the square root of their number."""
    passes = anchor.pretrain_epochs * math.sqrt(anchor.num_videos / num_videos)
    return min(passes, anchor.max_passes, max(2.0, anchor.max_steps * batch_size / num_videos))


def neighbors(num_videos: int, most: int) -> tuple[int, int]:
    """Return n (the guide's candidates) and k (the neighbors among them): at most `most` and 5, fewer of few videos."""
    n = max(3, min(most, num_videos // 10))
    return n, min(5, (n + 1) // 2)


def bank_size(num_videos: int, batch_size: int) -> int:
    """Return the entries of CMSF's memory bank: nine tenths of few videos, half of many; at least two batches."""
    wanted = min(MAX_BANK, max(min(0.9 * num_videos, 384), num_videos / 2))
    return max(2 * batch_size, int(wanted) // batch_size * batch_size)


def num_windows(footage: Footage, length: int, stride: int) -> int:
    """Return the windows per video that are embedded: about every other span of a typical video, 4 to 16."""
    return max(4, min(16, round(footage.median_frames / (2 * clip_span(length, stride)))))


def cache_size(footage: Footage, machine: Machine) -> float:
    """Return the gigabytes of decoded clips to keep: all of them, if they fit into a part of the memory."""
    if machine.device == "cuda":
        return 0.0  # workers decode while the GPU computes
    decoded = footage.num_videos * footage.median_frames * footage.frame_bytes / 1e9
    return round(min(1.25 * decoded + 0.1, CACHE_FRACTION * machine.memory_gb), 1)


def describe_size(size: PlanSize, footage: Footage) -> str:
    """Return a plan's size in one line."""
    return (
        f"{size.encoder}, {size.length} frames of {size.size} pixels; {size.pretrain_epochs} epochs of InfoNCE and "
        f"{size.cmsf_epochs} of CMSF per network, {size.steps_per_epoch(footage.num_videos):,} steps of "
        f"{size.batch_size} videos each; n = {size.num_candidates}, k = {size.k}, bank {size.bank_size:,}"
    )


# Smaller plans, for a time budget


def shorten(size: PlanSize, footage: Footage, factor: float) -> PlanSize:
    """Return the plan with its epochs scaled; CMSF keeps as many as its bank needs to fill."""
    per_epoch = size.steps_per_epoch(footage.num_videos) * size.batch_size
    fill_epochs = -(-10 * size.bank_size // per_epoch)
    return replace(
        size,
        pretrain_epochs=max(1, round(size.pretrain_epochs * factor)),
        cmsf_epochs=max(fill_epochs, round(size.cmsf_epochs * factor)),
    )


def total_steps(size: PlanSize, num_videos: int) -> tuple[int, int]:
    """Return the steps of InfoNCE and of CMSF, over both modalities and all rounds."""
    per_epoch = size.steps_per_epoch(num_videos)
    return 2 * per_epoch * size.pretrain_epochs, 2 * size.rounds * per_epoch * size.cmsf_epochs
