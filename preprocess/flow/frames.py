"""What all backends accept, and the sizes of the pyramid."""

import cv2
import numpy as np

from preprocess.flow.parameters import FlowParameters

SMALLEST_LEVEL = 16  # OpenCV drops levels with fewer rows or columns
SMALLEST_FRAME = 3  # below, central differences make no sense (and OpenCV reads outside the image)


def check_frames(frames: np.ndarray) -> None:
    """ValueError unless `frames` is uint8 (N + 1, H, W)."""
    accepted = "flow needs gray uint8 frames (N + 1, H, W); `to_gray` converts RGB"
    if not isinstance(frames, np.ndarray):
        raise ValueError(f"{accepted}; got a {type(frames).__name__}")
    if frames.dtype != np.uint8 or frames.ndim != 3:
        raise ValueError(f"{accepted}; got {frames.dtype} {frames.shape}")
    if len(frames) < 1:
        raise ValueError(f"{accepted}; got no frame at all: {frames.shape}")
    if min(frames.shape[1:]) < SMALLEST_FRAME:
        raise ValueError(
            f"flow needs frames of at least {SMALLEST_FRAME} x {SMALLEST_FRAME} pixels; got {frames.shape}"
        )


def to_gray(rgb: np.ndarray) -> np.ndarray:
    """uint8 RGB (..., H, W, 3) -> uint8 gray (..., H, W), with OpenCV's weights and rounding."""
    if not isinstance(rgb, np.ndarray) or rgb.dtype != np.uint8 or rgb.ndim < 3 or rgb.shape[-1] != 3:
        got = f"{rgb.dtype} {rgb.shape}" if isinstance(rgb, np.ndarray) else type(rgb).__name__
        raise ValueError(f"to_gray needs uint8 RGB (..., H, W, 3); got {got}")
    if rgb.size == 0:
        return np.zeros(rgb.shape[:-1], np.uint8)
    pixels = np.ascontiguousarray(rgb).reshape(-1, rgb.shape[-2], 3)  # one tall image: no loop over frames
    return cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY).reshape(rgb.shape[:-1])


def level_sizes(height: int, width: int, parameters: FlowParameters) -> list[tuple[int, int]]:
    """(H, W) of the pyramid's levels, the largest first; rounds half to even, as cv2.resize does."""
    sizes = [(height, width)]
    for _ in range(parameters.nscales - 1):
        height, width = (round(side * parameters.scale_step) for side in (height, width))
        if min(height, width) < SMALLEST_LEVEL:
            break
        sizes.append((height, width))
    return sizes
