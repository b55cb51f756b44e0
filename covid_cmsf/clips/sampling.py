"""Which frames make a clip: pure functions from a video's length to frame numbers.

`num_frames` is what the rarest modality has: flow has one frame less than RGB, so pass N - 1 when both are read; then
the same numbers serve both.
"""

from typing import Literal

import numpy as np

PadMode = Literal["pad", "loop"]


def clip_span(length: int, stride: int) -> int:
    """Frames from the first to the last of a clip, both counted."""
    return (length - 1) * stride + 1


def random_clip(
    num_frames: int, rng: np.random.Generator, *, length: int, stride: int = 1, pad_mode: PadMode = "pad"
) -> list[int]:
    """`length` numbers, `stride` apart, from a start drawn uniformly from all that fit."""
    _check(num_frames, length, stride)
    max_start = num_frames - clip_span(length, stride)
    if max_start < 0:
        return pad_clip(num_frames, length=length, stride=stride, pad_mode=pad_mode)
    start = int(rng.integers(max_start + 1))
    return list(range(start, start + clip_span(length, stride), stride))


def two_clips(
    num_frames: int, rng: np.random.Generator, *, length: int, stride: int = 1, pad_mode: PadMode = "pad"
) -> tuple[list[int], list[int]]:
    """Two independent clips of one video; they may overlap."""
    first = random_clip(num_frames, rng, length=length, stride=stride, pad_mode=pad_mode)
    return first, random_clip(num_frames, rng, length=length, stride=stride, pad_mode=pad_mode)


def sliding_windows(
    num_frames: int, *, length: int, stride: int = 1, step: int | None = None, pad_mode: PadMode = "pad"
) -> list[list[int]]:
    """Clips at 0, step, 2 step, ... while they fit; by default half a clip less one apart, as CoCLR tests."""
    _check(num_frames, length, stride)
    step = max(1, length * stride // 2 - 1) if step is None else step
    if step < 1:
        raise ValueError(f"windows must be at least 1 frame apart, not {step}")
    last_start = num_frames - clip_span(length, stride)
    if last_start < 0:
        return [pad_clip(num_frames, length=length, stride=stride, pad_mode=pad_mode)]
    return [list(range(start, start + clip_span(length, stride), stride)) for start in range(0, last_start + 1, step)]


def spread_windows(
    num_frames: int, *, length: int, num_windows: int, stride: int = 1, pad_mode: PadMode = "pad"
) -> list[list[int]]:
    """`num_windows` clips, evenly spread from the first frame to the last; one is in the middle."""
    _check(num_frames, length, stride)
    if num_windows < 1:
        raise ValueError(f"at least 1 window is needed, not {num_windows}")
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
    """A clip of a video that is too short: `pad` repeats frame 0 in front (CoCLR), `loop` starts over at the end."""
    indices = list(range(0, min(num_frames, clip_span(length, stride)), stride))[:length]
    if pad_mode == "pad":
        return [0] * (length - len(indices)) + indices
    if pad_mode == "loop":
        return [indices[i % len(indices)] for i in range(length)]
    raise ValueError(f"unknown pad_mode {pad_mode!r}; choose from pad, loop")


def _check(num_frames: int, length: int, stride: int) -> None:
    if num_frames < 1 or length < 1 or stride < 1:
        raise ValueError(f"frames ({num_frames}), clip length ({length}) and stride ({stride}) must be at least 1")
