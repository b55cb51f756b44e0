"""Quantize optical flow: clipped to +-bound pixels, one byte per component.

    level = 128 + round(flow * 127 / bound)             255 levels, 1 to 255; no motion is level 128, exactly
    level = round((flow + bound) * 255 / (2 * bound))   256 levels: CoCLR's data (Han et al., 2020), stores of format 1;
                                                        no motion is level 128, which reads as half a step

The bound follows the frame size, so that motion over the same share of the frame has the same level: 20 px, CoCLR's
bound, from a short edge of 240 pixels on, and proportionally less below. At 60 pixels a bound of 20 would cost a
quarter of the motion. In a video file, x and y are one gray image, x above y. Shapes: T frames, H x W pixels.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

FULL_BOUND, FULL_SHORT_EDGE = 20.0, 240
BOUND_PERCENTILE = 99.9  # of the motion of a video, by --flow-bound auto
MEAN_ERROR_STEPS = 0.3826  # mean length of a vector whose two components are uniform in +-half a step


@dataclass(frozen=True)
class FlowLevels:
    """A quantizer: flow = level * step + offset, in pixels."""

    bound: float
    count: Literal[255, 256] = 255

    @property
    def step(self) -> float:
        """Pixels from one level to the next."""
        return 2 * self.bound / (self.count - 1)

    @property
    def offset(self) -> float:
        """Pixels of level 0. With 255 levels, level 128 is 0 also in float32: 128 is a power of two."""
        return -128 * self.step if self.count == 255 else -self.bound

    @property
    def mean_error(self) -> float:
        """Expected length of the quantization error, in pixels, where the motion is larger than a step."""
        return MEAN_ERROR_STEPS * self.step

    def encode(self, flow: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Quantize flow in pixels, any shape; ValueError if a value is not finite."""
        if not np.isfinite(flow).all():
            raise ValueError("flow has values that are not finite")  # NaN would be stored as a motion
        clipped, per_pixel = np.clip(flow, -self.bound, self.bound), np.float32(1 / self.step)
        if self.count == 256:
            scaled: NDArray[np.float32] = np.rint((clipped + np.float32(self.bound)) * per_pixel)
        else:
            scaled = np.rint(clipped * per_pixel) + np.float32(128)
        return scaled.astype(np.uint8)

    def decode(self, levels: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return flow in pixels."""
        return levels.astype(np.float32) * np.float32(self.step) + np.float32(self.offset)


COCLR_LEVELS = FlowLevels(FULL_BOUND, 256)


def size_bound(width: int, height: int) -> float:
    """Return the bound of stored frames of this size, in stored pixels."""
    return round(FULL_BOUND * min(1.0, min(width, height) / FULL_SHORT_EDGE), 4)


def motion_bound(flow: NDArray[np.float32], width: int, height: int) -> float:
    """Return the bound of a video by its motion: a percentile of the components of `flow`, any shape.

    At least a twentieth of the bound by size: on a still video there is only noise to resolve.
    """
    percentile = float(np.percentile(np.abs(flow), BOUND_PERCENTILE)) if flow.size else 0.0
    return round(max(percentile, size_bound(width, height) / 20), 4)


def without_noise(flow: NDArray[np.float32], levels: FlowLevels) -> NDArray[np.float32]:
    """Return flow for a picture: components of up to one level are 0, so still areas are drawn white.

    Video coding changes some pixels without motion by a level, and 256 levels have none for zero.
    """
    return np.where(np.abs(flow) <= levels.step * 1.01, np.float32(0), flow)


def stack_components(quantized: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape (T, 2, H, W) to (T, 2H, W): one gray image per frame, x above y."""
    t, _, h, w = quantized.shape
    return quantized.reshape(t, 2 * h, w)


def unstack_components(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reshape (T, 2H, W) to (T, 2, H, W), the inverse of `stack_components`."""
    t, h2, w = frames.shape
    return frames.reshape(t, 2, h2 // 2, w)
