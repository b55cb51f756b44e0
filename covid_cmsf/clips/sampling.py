"""Which frames make a clip: pure functions from a video's length to frame numbers.

`num_frames` is what the rarest modality has: flow has one frame less than RGB, so pass N - 1 when both are read; then
the same numbers serve both.
"""

from typing import Literal

import numpy as np

Short = Literal["pad", "loop"]


def span(length: int, stride: int) -> int:
    """Frames from the first to the last of a clip, both counted."""
    return (length - 1) * stride + 1


def random_clip(
    num_frames: int, rng: np.random.Generator, *, length: int, stride: int = 1, short: Short = "pad"
) -> list[int]:
    """`length` numbers, `stride` apart, from a start drawn uniformly from all that fit."""
    _check(num_frames, length, stride)
    free = num_frames - span(length, stride)
    if free < 0:
        return short_clip(num_frames, length=length, stride=stride, short=short)
    start = int(rng.integers(free + 1))
    return list(range(start, start + span(length, stride), stride))


def two_clips(
    num_frames: int, rng: np.random.Generator, *, length: int, stride: int = 1, short: Short = "pad"
) -> tuple[list[int], list[int]]:
    """Two independent clips of one video; they may overlap."""
    first = random_clip(num_frames, rng, length=length, stride=stride, short=short)
    return first, random_clip(num_frames, rng, length=length, stride=stride, short=short)


def sliding_windows(
    num_frames: int, *, length: int, stride: int = 1, step: int | None = None, short: Short = "pad"
) -> list[list[int]]:
    """Clips at 0, step, 2 step, ... while they fit; by default half a clip less one apart, as CoCLR tests."""
    _check(num_frames, length, stride)
    step = max(1, length * stride // 2 - 1) if step is None else step
    if step < 1:
        raise ValueError(f"windows must be at least 1 frame apart, not {step}")
    last = num_frames - span(length, stride)
    if last < 0:
        return [short_clip(num_frames, length=length, stride=stride, short=short)]
    return [list(range(start, start + span(length, stride), stride)) for start in range(0, last + 1, step)]


def spread_windows(
    num_frames: int, *, length: int, num_windows: int, stride: int = 1, short: Short = "pad"
) -> list[list[int]]:
    """`num_windows` clips, evenly spread from the first frame to the last; one is in the middle."""
    _check(num_frames, length, stride)
    if num_windows < 1:
        raise ValueError(f"at least 1 window is needed, not {num_windows}")
    last = num_frames - span(length, stride)
    if last < 0:
        return [short_clip(num_frames, length=length, stride=stride, short=short)]
    starts = [last // 2] if num_windows == 1 else [round(i * last / (num_windows - 1)) for i in range(num_windows)]
    return [list(range(start, start + span(length, stride), stride)) for start in starts]


def short_clip(num_frames: int, *, length: int, stride: int = 1, short: Short = "pad") -> list[int]:
    """A clip of a video that is too short: `pad` repeats frame 0 in front (CoCLR), `loop` starts over at the end."""
    numbers = list(range(0, min(num_frames, span(length, stride)), stride))[:length]
    if short == "pad":
        return [0] * (length - len(numbers)) + numbers
    if short == "loop":
        return [numbers[i % len(numbers)] for i in range(length)]
    raise ValueError(f"unknown way to fill short clips {short!r}; choose from pad, loop")


def _check(num_frames: int, length: int, stride: int) -> None:
    if num_frames < 1 or length < 1 or stride < 1:
        raise ValueError(f"frames ({num_frames}), clip length ({length}) and stride ({stride}) must be at least 1")
