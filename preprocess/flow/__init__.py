"""Optical flow between consecutive frames: TV-L1 by one of four backends, with OpenCV's parameters and defaults.

    flow = make_flow(choose_backend("auto"))
    uv = flow(to_gray(frames))      # uint8 (N + 1, H, W, 3) -> gray (N + 1, H, W) -> float32 (N, 2, H, W)

`numba` runs fused loops on one CPU core and gives OpenCV's flow to the last bit; `numba-fast` allows other rounding
and takes about 2/3 of the time; `torch` runs a batch of pairs on any device; `opencv` is the reference.
Zach, Pock, Bischof, "A Duality Based Approach for Realtime TV-L1 Optical Flow" (DAGM 2007); Sanchez Perez,
Meinhardt-Llopis, Facciolo, "TV-L1 Optical Flow Estimation" (IPOL 2013).
`dis`, `farneback` and `raft` are other algorithms (`other_algorithms.py`). Shapes: N pairs of frames, H x W pixels.
"""

import logging
import shutil
from pathlib import Path
from typing import Protocol

import cv2
import numpy as np

from covid_cmsf.config import Config
from preprocess.flow.base import FlowParameters, to_gray
from preprocess.flow.measure import measure_backends
from preprocess.flow.other_algorithms import ALGORITHMS

__all__ = [
    "ALGORITHMS",
    "BACKENDS",
    "FlowBackend",
    "FlowParameters",
    "algorithm_name",
    "backend_version",
    "choose_backend",
    "count_gpus",
    "make_flow",
    "parameters_class",
    "runs_on_device",
    "to_gray",
]

logger = logging.getLogger(__name__)
BACKENDS = ("numba", "numba-fast", "torch", "opencv")  # of TV-L1


class FlowBackend(Protocol):
    """Compute flow from gray frames. Not thread-safe: use one object per thread."""

    name: str

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float32 flow (N, 2, H, W) of uint8 gray frames (N + 1, H, W): from frame i to i + 1, px, x first."""
        ...


def choose_backend(name: str, *, workers: int | None = None) -> str:
    """Return `name` if that backend is available, else ValueError.

    "auto" is numba; on a machine with GPUs it is torch if these are faster than numba on as many cores as `workers`,
    which is measured, or in any case if that is None.
    """
    if name == "auto":
        num_gpus = count_gpus()
        if workers is None or not num_gpus:
            return "torch" if num_gpus else "numba"
        speeds = measure_backends()
        cores, gpus = speeds["numba"] * workers, speeds["torch"] * num_gpus
        logger.info("TV-L1 per second: %.0f pairs by %d cores, %.0f by %d GPUs", cores, workers, gpus, num_gpus)
        return "torch" if gpus > cores else "numba"
    if name not in (*BACKENDS, *ALGORITHMS):
        raise ValueError(f"unknown flow backend {name!r}; choose from auto, {', '.join((*BACKENDS, *ALGORITHMS))}")
    if name == "opencv" and not hasattr(cv2, "optflow"):
        raise ValueError(
            "flow backend 'opencv': this cv2 has no optflow; uninstall opencv-python*, install "
            "opencv-contrib-python-headless, or use the backend numba"
        )
    return name


def algorithm_name(backend: str) -> str:
    """Return what a backend computes: tvl1, or its own name."""
    return backend if backend in ALGORITHMS else "tvl1"


def parameters_class(backend: str) -> type[Config]:
    """Return the class of a backend's parameters."""
    return ALGORITHMS[backend].parameters if backend in ALGORITHMS else FlowParameters


def runs_on_device(backend: str) -> bool:
    """Return whether a backend takes a device."""
    return backend == "torch" or (backend in ALGORITHMS and ALGORITHMS[backend].on_device)


def backend_version(backend: str) -> str:
    """Return the versions of the software that determines a backend's values, besides its parameters.

    It is recorded in store.json. numba's kernels have no version of their own: they must give OpenCV's values.
    """
    opencv = f"opencv {cv2.__version__}"
    if backend in ("opencv", "dis", "farneback"):
        return opencv
    if backend == "raft":
        import torch
        import torchvision

        return f"torch {torch.__version__} / torchvision {torchvision.__version__}"
    if backend == "torch":
        import torch

        return f"torch {torch.__version__} / {opencv}"
    import numba

    return f"numba {numba.__version__} / {opencv}"


def make_flow(backend: str, parameters: Config | None = None, *, device: str | None = None) -> FlowBackend:
    """Create a backend by name (see `choose_backend`).

    `device` is for torch and raft: default CUDA if available, else CPU.
    """
    backend = choose_backend(backend)
    expected = parameters_class(backend)
    parameters = parameters if parameters is not None else expected()
    if not isinstance(parameters, expected):
        raise ValueError(f"flow backend {backend!r} takes {expected.__name__}, not {type(parameters).__name__}")
    if device is not None and not runs_on_device(backend):
        raise ValueError(f"flow backend {backend!r} has no device (got {device!r}); only torch and raft run on one")
    if backend in ALGORITHMS:
        return ALGORITHMS[backend].make(parameters, device)  # type: ignore[arg-type]
    assert isinstance(parameters, FlowParameters)
    if backend == "torch":
        from preprocess.flow.torch_backend import TorchFlow

        return TorchFlow(parameters, device)
    if backend in ("numba", "numba-fast"):
        from preprocess.flow.numba_backend import NumbaFlow

        return NumbaFlow(parameters, exact=backend == "numba")
    from preprocess.flow.opencv_backend import OpenCVFlow

    return OpenCVFlow(parameters)


def count_gpus() -> int:
    """Return how many GPUs torch can use; import torch (slow, much memory) only if there is an NVIDIA driver."""
    if not any(Path("/dev").glob("nvidia[0-9]*")) and shutil.which("nvidia-smi") is None:
        return 0
    import torch

    return torch.cuda.device_count()  # opens no CUDA context
