"""Temporal sampling: pure functions from a video's length to the frame indices of clips.

`num_frames` is the length of the shortest modality: flow has one frame less than RGB, so pass N - 1 if both are read;
then the same indices are valid for both.
"""

from typing import Literal

import numpy as np

PadMode = Literal["pad", "loop"]


def clip_span(length: int, stride: int) -> int:
    """Return the number of video frames that a clip spans, from its first to its last, both included."""
    return (length - 1) * stride + 1


def random_clip(
    num_frames: int, rng: np.random.Generator, *, length: int, stride: int = 1, pad_mode: PadMode = "pad"
) -> list[int]:
    """Return `length` frame indices, `stride` apart, from a uniformly random start."""
    _check(num_frames, length, stride)
    max_start = num_frames - clip_span(length, stride)
    if max_start < 0:
        return pad_clip(num_frames, length=length, stride=stride, pad_mode=pad_mode)
    start = int(rng.integers(max_start + 1))
    return list(range(start, start + clip_span(length, stride), stride))


def two_clips(
    num_frames: int, rng: np.random.Generator, *, length: int, stride: int = 1, pad_mode: PadMode = "pad"
) -> tuple[list[int], list[int]]:
    """Return two independent clips of one video; they may overlap."""
    first = random_clip(num_frames, rng, length=length, stride=stride, pad_mode=pad_mode)
    return first, random_clip(num_frames, rng, length=length, stride=stride, pad_mode=pad_mode)


def sliding_windows(
    num_frames: int, *, length: int, stride: int = 1, step: int | None = None, pad_mode: PadMode = "pad"
) -> list[list[int]]:
    """Return the clips that start at 0, step, 2 * step, ... and fit into the video.

    The default step is half a clip less one frame, as in CoCLR's test protocol.
    """
    _check(num_frames, length, stride)
    step = max(1, length * stride // 2 - 1) if step is None else step
    if step < 1:
        raise ValueError(f"step between windows is {step}; it must be at least 1 frame")
    last_start = num_frames - clip_span(length, stride)
    if last_start < 0:
        return [pad_clip(num_frames, length=length, stride=stride, pad_mode=pad_mode)]
    return [list(range(start, start + clip_span(length, stride), stride)) for start in range(0, last_start + 1, step)]


def spread_windows(
    num_frames: int, *, length: int, num_windows: int, stride: int = 1, pad_mode: PadMode = "pad"
) -> list[list[int]]:
    """Return `num_windows` clips, evenly spread over the video; a single one is centered."""
    _check(num_frames, length, stride)
    if num_windows < 1:
        raise ValueError(f"num_windows is {num_windows}; it must be at least 1")
    last_start = num_frames - clip_span(length, stride)
    if last_start < 0:
        return [pad_clip(num_frames, length=length, stride=stride, pad_mode=pad_mode)]
    starts = (
        [last_start // 2]
        if num_windows == 1
        else [round(i * last_start / (num_windows - 1)) for i in range(num_windows)]
    )
    return [list(range(start, start + clip_span(length, stride), stride)) for start in starts]


def pad_clip(num_frames: int, *, length: int, stride: int = 1, pad_mode: PadMode = "pad") -> list[int]:
    """Return the clip of a video shorter than a clip: `pad` repeats frame 0 in front (CoCLR), `loop` starts over."""
    indices = list(range(0, min(num_frames, clip_span(length, stride)), stride))[:length]
    if pad_mode == "pad":
        return [0] * (length - len(indices)) + indices
    if pad_mode == "loop":
        return [indices[i % len(indices)] for i in range(length)]
    raise ValueError(f"unknown pad_mode {pad_mode!r}; choose from pad, loop")


def _check(num_frames: int, length: int, stride: int) -> None:
    if num_frames < 1 or length < 1 or stride < 1:
        raise ValueError(f"frames ({num_frames}), clip length ({length}) and stride ({stride}) must be at least 1")
