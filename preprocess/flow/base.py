"""TV-L1's parameters, and what all backends share: input checks, conversion to gray, sizes of the pyramid."""

from typing import Literal

import cv2
import numpy as np
from pydantic import ConfigDict, Field

from covid_cmsf.config import Config

MIN_LEVEL_SIZE = 16  # OpenCV drops levels with fewer rows or columns
MIN_FRAME_SIZE = 3  # below, central differences are undefined (and OpenCV reads outside the image)


class FlowParameters(Config):
    """The parameters of OpenCV's `DualTVL1OpticalFlow`, with its names and defaults.

    Zach, Pock, Bischof, "A Duality Based Approach for Realtime TV-L1 Optical Flow" (2007); Sanchez Perez,
    Meinhardt-Llopis, Facciolo, "TV-L1 Optical Flow Estimation" (IPOL 2013) for the pyramid and the stopping rule.

    Example:
        >>> frames = torch.randint(0, 256, (2, 60, 80), dtype=torch.uint8)
        >>> flow = cc.optical_flow(frames, backend="opencv", parameters=cc.FlowParameters(warps=1))
    """

    model_config = ConfigDict(populate_by_name=True)

    tau: float = Field(0.25, gt=0, le=0.25, description="time step of the dual update; above 1/4 it may diverge")
    lambda_: float = Field(0.15, gt=0, alias="lambda", description="weight of the data term; smaller is smoother")
    theta: float = Field(0.3, gt=0, description="coupling between the flow and its auxiliary copy; smaller is tighter")
    nscales: int = Field(5, ge=1, le=100, description="levels of the pyramid; levels below 16 px are dropped")
    warps: int = Field(5, ge=1, le=1000, description="warps of the second image per level")
    epsilon: float = Field(0.01, gt=0, description="stop when the flow changes less than this (px, rms)")
    inner_iterations: int = Field(30, ge=1, le=100_000, description="iterations between two median filters")
    outer_iterations: int = Field(10, ge=1, le=100_000, description="maximum number of median filters per warp")
    scale_step: float = Field(0.8, gt=0, lt=1, description="size of a level relative to the next larger one")
    gamma: float = Field(0.0, ge=0, description="weight of the illumination change; 0 is off")
    median_filtering: Literal[1, 3, 5] = Field(5, description="width of the median filter of the flow; 1 is off")


def check_frames(frames: np.ndarray) -> None:
    """Raise ValueError unless `frames` is uint8 (N + 1, H, W)."""
    accepted = "flow needs gray uint8 frames (N + 1, H, W); `to_gray` converts RGB"
    if not isinstance(frames, np.ndarray):
        raise ValueError(f"{accepted}; got a {type(frames).__name__}")
    if frames.dtype != np.uint8 or frames.ndim != 3:
        raise ValueError(f"{accepted}; got {frames.dtype} {frames.shape}")
    if len(frames) < 1:
        raise ValueError(f"{accepted}; got no frame: {frames.shape}")
    if min(frames.shape[1:]) < MIN_FRAME_SIZE:
        raise ValueError(
            f"flow needs frames of at least {MIN_FRAME_SIZE} x {MIN_FRAME_SIZE} pixels; got {frames.shape}"
        )


def to_gray(rgb: np.ndarray) -> np.ndarray:
    """Convert uint8 RGB (..., H, W, 3) to uint8 gray (..., H, W), with OpenCV's weights and rounding."""
    if not isinstance(rgb, np.ndarray) or rgb.dtype != np.uint8 or rgb.ndim < 3 or rgb.shape[-1] != 3:
        got = f"{rgb.dtype} {rgb.shape}" if isinstance(rgb, np.ndarray) else type(rgb).__name__
        raise ValueError(f"to_gray needs uint8 RGB (..., H, W, 3); got {got}")
    if rgb.size == 0:
        return np.zeros(rgb.shape[:-1], np.uint8)
    pixels = np.ascontiguousarray(rgb).reshape(-1, rgb.shape[-2], 3)  # one tall image: no loop over frames
    gray: np.ndarray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    return gray.reshape(rgb.shape[:-1])


def level_sizes(height: int, width: int, parameters: FlowParameters) -> list[tuple[int, int]]:
    """Return (H, W) of the pyramid's levels, the largest first; rounded half to even, as cv2.resize does."""
    sizes = [(height, width)]
    for _ in range(parameters.nscales - 1):
        height, width = (round(side * parameters.scale_step) for side in (height, width))
        if min(height, width) < MIN_LEVEL_SIZE:
            break
        sizes.append((height, width))
    return sizes
