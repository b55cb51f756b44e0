"""TV-L1 optical flow between consecutive frames: three backends that agree, with OpenCV's parameters and defaults.

    flow = make_flow(choose_backend("auto"))
    uv = flow(to_gray(frames))      # uint8 (N + 1, H, W, 3) -> gray (N + 1, H, W) -> float32 (N, 2, H, W)

`numba` runs fused loops on one CPU core and gives OpenCV's flow to the last bit; `numba-fast` rounds more freely
and takes about 2/3 of the time; `torch` runs a batch of pairs on any device; `opencv` is the reference.
Zach, Pock, Bischof, "A Duality Based Approach for Realtime TV-L1 Optical Flow" (DAGM 2007); Sanchez Perez,
Meinhardt-Llopis, Facciolo, "TV-L1 Optical Flow Estimation" (IPOL 2013).
"""
# N pairs, H W pixels

import shutil
from pathlib import Path
from typing import Protocol

import numpy as np

from preprocess.flow.base import FlowParameters, to_gray

__all__ = ["BACKENDS", "FlowBackend", "FlowParameters", "choose_backend", "make_flow", "to_gray"]

BACKENDS = ("numba", "numba-fast", "torch", "opencv")


class FlowBackend(Protocol):
    """Turns gray frames into flow; one object a thread."""

    name: str
    version: str  # of everything that the numbers depend on, besides the parameters

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """uint8 gray frames (N + 1, H, W) -> float32 flow (N, 2, H, W) from frame i to i + 1 in pixels, x then y."""
        ...


def choose_backend(name: str) -> str:
    """`name` if it is a backend; "auto" is torch on a machine with a CUDA GPU and numba elsewhere."""
    if name == "auto":
        return "torch" if _has_cuda() else "numba"
    if name not in BACKENDS:
        raise ValueError(f"unknown flow backend {name!r}; choose from auto, {', '.join(BACKENDS)}")
    return name


def make_flow(backend: str, parameters: FlowParameters | None = None, *, device: str | None = None) -> FlowBackend:
    """A backend by name (see `choose_backend`). `device` is for torch: "cuda" if there is one, else "cpu"."""
    backend = choose_backend(backend)
    parameters = parameters if parameters is not None else FlowParameters()
    if device is not None and backend != "torch":
        raise ValueError(f"flow backend {backend!r} has no device (got {device!r}); only torch runs on one")
    if backend == "torch":
        from preprocess.flow.torch_backend import TorchFlow

        return TorchFlow(parameters, device)
    if backend in ("numba", "numba-fast"):
        from preprocess.flow.numba_backend import NumbaFlow

        return NumbaFlow(parameters, exact=backend == "numba")
    from preprocess.flow.opencv_backend import OpenCVFlow

    return OpenCVFlow(parameters)


def _has_cuda() -> bool:
    """Imports torch, which takes seconds and much memory, only where there is a sign of an NVIDIA driver."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and shutil.which("nvidia-smi") is None:
        return False
    import torch

    return torch.cuda.is_available()
