"""The parameters of TV-L1, with OpenCV's names and defaults."""

from typing import Literal

import cv2
import numpy as np
from pydantic import ConfigDict, Field

from covid_cmsf.config import Config


class FlowParameters(Config):
    """What OpenCV's `DualTVL1OpticalFlow` calls tau, lambda, ...; the defaults are OpenCV's.

    Zach, Pock, Bischof, "A Duality Based Approach for Realtime TV-L1 Optical Flow" (2007); Sanchez Perez,
    Meinhardt-Llopis, Facciolo, "TV-L1 Optical Flow Estimation" (IPOL 2013) for the pyramid and the stopping rule.
    """

    model_config = ConfigDict(populate_by_name=True)

    tau: float = Field(0.25, gt=0, le=0.25, description="time step of the dual update; above 1/4 it may diverge")
    lambda_: float = Field(0.15, gt=0, alias="lambda", description="weight of the data term; smaller is smoother")
    theta: float = Field(0.3, gt=0, description="tightness between the flow and its auxiliary copy")
    nscales: int = Field(5, ge=1, le=100, description="levels of the pyramid, fewer for images that get below 16 px")
    warps: int = Field(5, ge=1, le=1000, description="warps of the second image a level")
    epsilon: float = Field(0.01, gt=0, description="stop when the flow changes less than this (px, rms)")
    inner_iterations: int = Field(30, ge=1, le=100_000, description="iterations between two median filters")
    outer_iterations: int = Field(10, ge=1, le=100_000, description="median filters a warp, at most")
    scale_step: float = Field(0.8, gt=0, lt=1, description="size of a level relative to the one before")
    gamma: float = Field(0.0, ge=0, description="weight of a field of illumination change; 0 is none")
    median_filtering: Literal[1, 3, 5] = Field(5, description="width of the median filter of the flow; 1 is off")


# What all backends accept, and the sizes of the pyramid.

MIN_LEVEL_SIZE = 16  # OpenCV drops levels with fewer rows or columns
MIN_FRAME_SIZE = 3  # below, central differences make no sense (and OpenCV reads outside the image)


def check_frames(frames: np.ndarray) -> None:
    """ValueError unless `frames` is uint8 (N + 1, H, W)."""
    accepted = "flow needs gray uint8 frames (N + 1, H, W); `to_gray` converts RGB"
    if not isinstance(frames, np.ndarray):
        raise ValueError(f"{accepted}; got a {type(frames).__name__}")
    if frames.dtype != np.uint8 or frames.ndim != 3:
        raise ValueError(f"{accepted}; got {frames.dtype} {frames.shape}")
    if len(frames) < 1:
        raise ValueError(f"{accepted}; got no frame at all: {frames.shape}")
    if min(frames.shape[1:]) < MIN_FRAME_SIZE:
        raise ValueError(
            f"flow needs frames of at least {MIN_FRAME_SIZE} x {MIN_FRAME_SIZE} pixels; got {frames.shape}"
        )


def to_gray(rgb: np.ndarray) -> np.ndarray:
    """uint8 RGB (..., H, W, 3) -> uint8 gray (..., H, W), with OpenCV's weights and rounding."""
    if not isinstance(rgb, np.ndarray) or rgb.dtype != np.uint8 or rgb.ndim < 3 or rgb.shape[-1] != 3:
        got = f"{rgb.dtype} {rgb.shape}" if isinstance(rgb, np.ndarray) else type(rgb).__name__
        raise ValueError(f"to_gray needs uint8 RGB (..., H, W, 3); got {got}")
    if rgb.size == 0:
        return np.zeros(rgb.shape[:-1], np.uint8)
    pixels = np.ascontiguousarray(rgb).reshape(-1, rgb.shape[-2], 3)  # one tall image: no loop over frames
    gray: np.ndarray = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
    return gray.reshape(rgb.shape[:-1])


def level_sizes(height: int, width: int, parameters: FlowParameters) -> list[tuple[int, int]]:
    """(H, W) of the pyramid's levels, the largest first; rounds half to even, as cv2.resize does."""
    sizes = [(height, width)]
    for _ in range(parameters.nscales - 1):
        height, width = (round(side * parameters.scale_step) for side in (height, width))
        if min(height, width) < MIN_LEVEL_SIZE:
            break
        sizes.append((height, width))
    return sizes
