"""Render optical flow as colors: hue is the direction, saturation is the speed, zero motion is white.

The color wheel of the Middlebury benchmark (Baker et al., "A Database and Evaluation Methodology for Optical Flow",
IJCV 2011): 55 hues, spaced by how well the eye tells them apart.
Shapes: T frames, H x W pixels.
"""

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.flow_codec import FlowLevels, without_noise

# Number of steps from each color to the next: red, yellow, green, cyan, blue, magenta, and back to red.
CORNERS = np.array([[255, 0, 0], [255, 255, 0], [0, 255, 0], [0, 255, 255], [0, 0, 255], [255, 0, 255]])
STEPS = (15, 6, 4, 11, 13, 6)


def color_wheel() -> NDArray[np.float64]:
    """Return the 55 hues as RGB in 0..1, (55, 3)."""
    segments = []
    for index, steps in enumerate(STEPS):
        start, end = CORNERS[index], CORNERS[(index + 1) % len(CORNERS)]
        segments.append(start + (end - start) * np.arange(steps)[:, None] / steps)
    return np.concatenate(segments) / 255


def draw_flow(flow: NDArray[np.float32], levels: FlowLevels) -> tuple[list[NDArray[np.uint8]], float]:
    """Render the flow (T, 2, H, W) of a clip; return the images (H, W, 3) and the speed of full color, in pixels.

    That is the 99th percentile of the clip's speed, at least a twentieth of the bound. Still areas are white.
    """
    moving = without_noise(flow, levels)
    scale = max(levels.bound / 20, float(np.percentile(np.hypot(moving[:, 0], moving[:, 1]), 99)))
    return [flow_to_rgb(one, scale) for one in moving], scale


def flow_to_rgb(flow: NDArray[np.float32], scale: float) -> NDArray[np.uint8]:
    """Render flow (2, H, W) in pixels as RGB (H, W, 3); speed `scale` has full saturation, above it is darkened."""
    x, y = flow.astype(np.float64) / max(scale, 1e-9)
    speed = np.hypot(x, y)  # (H, W)
    wheel = color_wheel()
    position = (np.arctan2(-y, -x) / np.pi + 1) / 2 * (len(wheel) - 1)
    lower = np.floor(position).astype(int)
    fraction = (position - lower)[..., None]
    hue = (1 - fraction) * wheel[lower] + fraction * wheel[(lower + 1) % len(wheel)]  # (H, W, 3)
    saturated = 1 - speed[..., None] * (1 - hue)
    color: NDArray[np.float64] = np.rint(255 * np.where(speed[..., None] <= 1, saturated, hue * 0.75))
    return color.astype(np.uint8)


def color_wheel_image(size: int) -> NDArray[np.uint8]:
    """Return the legend (size, size, 3): a pixel has the color of the motion from the center to it."""
    x, y = np.meshgrid(np.linspace(-1, 1, size), np.linspace(-1, 1, size))
    image = flow_to_rgb(np.stack([x, y]).astype(np.float32), 1.0)
    image[np.hypot(x, y) > 1] = 255
    return image
