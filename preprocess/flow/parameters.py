"""The parameters of TV-L1, with OpenCV's names and defaults."""

from typing import Literal

from pydantic import ConfigDict, Field

from covid_cmsf.config import Settings


class FlowParameters(Settings):
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
