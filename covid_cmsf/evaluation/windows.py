"""Which frames of a video are looked at: the windows of each protocol, as frame numbers."""

import hashlib

import numpy as np

from covid_cmsf.clips.sampling import short_clip, sliding_windows, span, spread_windows
from covid_cmsf.evaluation.showing import Showing


def choose_windows(showing: Showing, num_frames: int, part: str, rng: np.random.Generator) -> list[list[int]]:
    """The windows of a video with so many frames; `part` (train, test, val) matters to protocol coclr only.

    ValueError when the protocol leaves the video out.
    """
    length, stride = showing.length, showing.stride
    if showing.protocol == "clean" or length == 1:
        return spread_windows(num_frames, length=length, stride=stride, num_windows=showing.num_windows)
    fewest = length // 2 * stride + 2
    if num_frames < fewest:
        raise ValueError(f"protocol coclr leaves out videos of fewer than {fewest} frames; this one has {num_frames}")
    if part == "train":
        return [_random_clip(num_frames, rng, length=length, stride=stride)]
    return sliding_windows(num_frames, length=length, stride=stride)


def _random_clip(num_frames: int, rng: np.random.Generator, *, length: int, stride: int) -> list[int]:
    """CoCLR's draw: it takes a clip for length * stride frames long, and never the last start that fits."""
    free = num_frames - length * stride
    if free <= 0:
        return short_clip(num_frames, length=length, stride=stride)
    start = int(rng.integers(free))
    return list(range(start, start + span(length, stride), stride))


def video_rng(seed: int, video_id: str) -> np.random.Generator:
    """The dice of one video: they follow from its name, whatever else is read and in whatever order."""
    digest = hashlib.sha256(video_id.encode("utf-8", "surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
