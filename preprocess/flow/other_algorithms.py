"""Optical flow by other algorithms than TV-L1: DIS and Farneback (OpenCV), RAFT (torchvision).

DIS: Kroeger et al., "Fast Optical Flow using Dense Inverse Search" (ECCV 2016). Farneback, "Two-Frame Motion Estimation
Based on Polynomial Expansion" (SCIA 2003). RAFT: Teed and Deng (ECCV 2020), a trained network.
Shapes: N pairs of frames, H x W pixels.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import cv2
import numpy as np
from pydantic import Field

from covid_cmsf.config import Config
from preprocess.flow.base import check_frames

MIN_DIS_SIZE = 16  # pixels; OpenCV's DIS fails below
MIN_RAFT_SIZE = 128  # pixels; smaller frames are enlarged, their flow is scaled back
RAFT_STEP = 8  # sizes are multiples of it


class DisParameters(Config):
    """The parameters of OpenCV's `DISOpticalFlow`."""

    preset: Literal["ultrafast", "fast", "medium"] = Field("medium", description="OpenCV's presets, by speed")


class FarnebackParameters(Config):
    """The parameters of OpenCV's `calcOpticalFlowFarneback`; defaults as in its samples."""

    pyr_scale: float = Field(0.5, gt=0, lt=1, description="size of a level relative to the next larger one")
    levels: int = Field(3, ge=1, description="levels of the pyramid")
    winsize: int = Field(15, ge=3, description="width of the averaging window; larger is smoother")
    iterations: int = Field(3, ge=1, description="iterations per level")
    poly_n: Literal[5, 7] = Field(5, description="neighborhood of the polynomial")
    poly_sigma: float = Field(1.2, gt=0, description="its width: 1.1 for poly_n 5, 1.5 for 7")


class RaftParameters(Config):
    """The network of torchvision and its weights file."""

    weights: str = Field("", description="file with torchvision's weights, such as raft_small_C_T_V2-01064c6d.pth")
    network: Literal["raft_small", "raft_large"] = Field("raft_small", description="a name of torchvision")
    iterations: int = Field(12, ge=1, description="updates of the flow")


class DisFlow:
    """Dense inverse search."""

    name = "dis"

    def __init__(self, parameters: DisParameters, device: str | None = None) -> None:
        presets = {
            "ultrafast": cv2.DISOPTICAL_FLOW_PRESET_ULTRAFAST,
            "fast": cv2.DISOPTICAL_FLOW_PRESET_FAST,
            "medium": cv2.DISOPTICAL_FLOW_PRESET_MEDIUM,
        }
        self._preset = presets[parameters.preset]

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float32 flow (N, 2, H, W) in pixels, x first, of uint8 gray frames (N + 1, H, W)."""
        check_frames(frames)
        if min(frames.shape[1:]) < MIN_DIS_SIZE:
            raise ValueError(f"DIS needs frames of at least {MIN_DIS_SIZE} pixels; got {frames.shape}")
        solver = cv2.DISOpticalFlow_create(self._preset)  # anew: it keeps buffers of the last frame size
        flow = [solver.calc(first, second, None) for first, second in pairwise(frames)]
        return _stack(flow, frames)


class FarnebackFlow:
    """Polynomial expansion."""

    name = "farneback"

    def __init__(self, parameters: FarnebackParameters, device: str | None = None) -> None:
        self.parameters = parameters

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float32 flow (N, 2, H, W) in pixels, x first, of uint8 gray frames (N + 1, H, W)."""
        check_frames(frames)
        values = self.parameters.model_dump()
        flow = [cv2.calcOpticalFlowFarneback(a, b, None, **values, flags=0) for a, b in pairwise(frames)]
        return _stack(flow, frames)


class RaftFlow:
    """RAFT on gray frames, repeated as three channels: all backends compute flow from the same frames."""

    name = "raft"

    def __init__(self, parameters: RaftParameters, device: str | None = None) -> None:
        import torch
        from torchvision.models import get_model

        if not Path(parameters.weights).is_file():
            raise FileNotFoundError(
                f"flow backend 'raft' needs weights of torchvision: no file {parameters.weights!r}; "
                "give --flow-parameters weights=FILE"
            )
        self.parameters = parameters
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        network = get_model(parameters.network, weights=None)
        state = torch.load(parameters.weights, map_location="cpu", weights_only=True)
        try:
            network.load_state_dict(state)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise ValueError(f"{parameters.weights} does not fit {parameters.network}: {reason}") from None
        self._network = network.eval().requires_grad_(False).to(self.device)

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float32 flow (N, 2, H, W) in pixels, x first, of uint8 gray frames (N + 1, H, W)."""
        import torch
        from torch.nn import functional

        check_frames(frames)
        height, width = frames.shape[1:]
        scale = max(1.0, MIN_RAFT_SIZE / min(height, width))
        size = [RAFT_STEP * max(1, round(side * scale / RAFT_STEP)) for side in (height, width)]
        flow = np.empty((len(frames) - 1, 2, height, width), np.float32)
        with torch.inference_mode():
            for number in range(len(flow)):
                pair = torch.from_numpy(frames[number : number + 2]).to(self.device)[:, None].float() / 127.5 - 1
                pair = functional.interpolate(pair, size=size, mode="bilinear", align_corners=False)
                first, second = pair.expand(-1, 3, -1, -1).split(1)
                found = self._network(first, second, num_flow_updates=self.parameters.iterations)[-1]
                found = functional.interpolate(found, size=(height, width), mode="bilinear", align_corners=False)
                factors = torch.tensor([width / size[1], height / size[0]], device=self.device).view(2, 1, 1)
                flow[number] = (found[0] * factors).cpu().numpy()
        return flow


@dataclass(frozen=True)
class Algorithm:
    """A backend with parameters of its own. `make(parameters, device)` creates it."""

    make: type[DisFlow] | type[FarnebackFlow] | type[RaftFlow]
    parameters: type[Config]
    on_device: bool = False  # whether it runs on a GPU


ALGORITHMS = {
    "dis": Algorithm(DisFlow, DisParameters),
    "farneback": Algorithm(FarnebackFlow, FarnebackParameters),
    "raft": Algorithm(RaftFlow, RaftParameters, on_device=True),
}


def _stack(flow: list[np.ndarray], frames: np.ndarray) -> np.ndarray:
    """Return (N, 2, H, W) of N pictures (H, W, 2), of which there may be none."""
    if not flow:
        return np.empty((0, 2, *frames.shape[1:]), np.float32)
    return np.ascontiguousarray(np.stack(flow).transpose(0, 3, 1, 2), dtype=np.float32)
