"""How optical flow is stored: clipped to +-bound pixels, one byte a component.

    code = round((flow + bound) * 255 / (2 * bound))        zero motion -> 128, step 0.157 px at bound 20

The same rule as CoCLR's data (Han et al., 2020). In a file the x component stands above the y component.
"""

# T frames, H W pixels

import numpy as np
from numpy.typing import NDArray


def encode_flow(flow: NDArray[np.float32], bound: float) -> NDArray[np.uint8]:
    """Flow in pixels -> codes, any shape. NaN is an error: it would be stored as a motion."""
    if not np.isfinite(flow).all():
        raise ValueError("flow has values that are not finite")
    scaled: NDArray[np.float32] = (np.clip(flow, -bound, bound) + np.float32(bound)) * np.float32(255 / (2 * bound))
    return np.rint(scaled).astype(np.uint8)


def decode_flow(quantized: NDArray[np.uint8], bound: float) -> NDArray[np.float32]:
    """Codes -> flow in pixels. 127.5 is zero, so code 128 (zero motion) reads as +0.08 px at bound 20."""
    return quantized.astype(np.float32) * np.float32(2 * bound / 255) - np.float32(bound)


def stack_components(quantized: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(T, 2, H, W) -> (T, 2H, W): x above y, as one gray picture."""
    t, _, h, w = quantized.shape
    return quantized.reshape(t, 2 * h, w)


def unstack_components(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(T, 2H, W) -> (T, 2, H, W), the inverse of `stack_components`."""
    t, h2, w = frames.shape
    return frames.reshape(t, 2, h2 // 2, w)
