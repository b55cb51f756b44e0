"""Gray thumbnails of videos, a few per second, to compare their pictures."""

import cv2
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.search.alignment import RATE, THUMBNAIL_SIZE, Bytes

DARK = 24  # gray level: a border that never gets lighter is a black bar
DEFAULT_FPS = 25.0  # where the store does not know it


def thumbnail_frames(num_frames: int, fps: float) -> list[int]:
    """Return the frames to take: RATE per second of the video."""
    step = (fps if fps > 0 else DEFAULT_FPS) / RATE
    return [round(k * step) for k in range(int(np.ceil(num_frames / step))) if round(k * step) < num_frames]


def make_thumbnails(frames: NDArray[np.uint8]) -> Bytes:
    """Shrink RGB frames (S, H, W, 3) to gray thumbnails (S, E, E), without black bars; E is THUMBNAIL_SIZE."""
    gray = np.stack([cv2.cvtColor(frame, cv2.COLOR_RGB2GRAY) for frame in frames])
    rows, columns = (_without_bars(gray.max(axis)) for axis in ((0, 2), (0, 1)))
    size = (THUMBNAIL_SIZE, THUMBNAIL_SIZE)
    small = [cv2.resize(picture[rows, columns], size, interpolation=cv2.INTER_AREA) for picture in gray]
    return np.stack(small).astype(np.uint8)


def read_thumbnails(clips: Clips, record: ClipRecord) -> Bytes:
    """Return the thumbnails of a video of a store."""
    raw = clips.read_raw(record, "rgb", thumbnail_frames(record.num_frames, record.fps))
    return make_thumbnails(np.ascontiguousarray(raw.permute(0, 2, 3, 1).numpy()))


def _without_bars(brightest: NDArray[np.uint8]) -> slice:
    """Return the lines between the first and the last that are not always dark; all lines if all are dark."""
    bright = np.flatnonzero(brightest > DARK)
    return slice(int(bright[0]), int(bright[-1]) + 1) if len(bright) else slice(0, len(brightest))
