"""Quantize optical flow: clipped to +-bound pixels, one byte per component.

    raw = round((flow + bound) * 255 / (2 * bound))        zero motion -> 128, step 0.157 px at bound 20

The same rule as in CoCLR's data (Han et al., 2020). In a video file, x and y are one gray image, x above y.
Shapes: T frames, H x W pixels.
"""

import numpy as np
from numpy.typing import NDArray

FLOW_BOUND = 20.0  # pixels; the default of `covid-cmsf preprocess`, as in CoCLR's data


def encode_flow(flow: NDArray[np.float32], bound: float) -> NDArray[np.uint8]:
    """Quantize flow in pixels, any shape; ValueError if a value is not finite."""
    if not np.isfinite(flow).all():
        raise ValueError("flow has values that are not finite")  # NaN would be stored as a motion
    scaled: NDArray[np.float32] = (np.clip(flow, -bound, bound) + np.float32(bound)) * np.float32(255 / (2 * bound))
    return np.rint(scaled).astype(np.uint8)


def decode_flow(quantized: NDArray[np.uint8], bound: float) -> NDArray[np.float32]:
    """Return flow in pixels. Zero lies at 127.5, so zero motion, stored as 128, reads as +0.08 px at bound 20."""
    return quantized.astype(np.float32) * np.float32(2 * bound / 255) - np.float32(bound)


def stack_components(quantized: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape (T, 2, H, W) to (T, 2H, W): one gray image per frame, x above y."""
    t, _, h, w = quantized.shape
    return quantized.reshape(t, 2 * h, w)


def unstack_components(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape (T, 2H, W) to (T, 2, H, W), the inverse of `stack_components`."""
    t, h2, w = frames.shape
    return frames.reshape(t, 2, h2 // 2, w)
