"""Which TV-L1 backend is faster on this machine: pairs of frames per second of one core, and of one GPU.

    python -m preprocess.flow.measure

Run as a program of its own, so that the process that starts the workers never opens a CUDA context. Its last line is
{"numba": pairs/s of one core, "torch": pairs/s of the first GPU}.
"""

import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable

import cv2
import numpy as np

logger = logging.getLogger(__name__)
SIZE = (240, 320)  # height, width: UCF-101's
NUM_PAIRS = 16  # a chunk of preprocessing
TIME_LIMIT = 300.0  # seconds, for both together


def measure_backends() -> dict[str, float]:
    """Return pairs per second by backend, measured by another process; RuntimeError if it fails."""
    logger.info("measuring which flow backend is faster: numba on a core, or torch on a GPU")
    command = [sys.executable, "-m", "preprocess.flow.measure"]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=TIME_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise RuntimeError(
            f"measuring the flow backends took more than {TIME_LIMIT:g} s; name one: --flow-backend numba or torch"
        ) from None
    if ended.returncode != 0:
        reason = (ended.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(
            f"the flow backends could not be measured ({reason}); name one: --flow-backend numba or torch"
        )
    speeds: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return speeds


def moving_frames() -> np.ndarray:
    """Return gray frames (NUM_PAIRS + 1, H, W) of a blurred texture that moves by two pixels per frame."""
    noise = np.random.default_rng(0).random((SIZE[0], SIZE[1] + 2 * NUM_PAIRS)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 4)
    texture = cv2.normalize(smooth, None, 0, 255, cv2.NORM_MINMAX).astype(np.uint8)
    return np.stack([texture[:, 2 * start : 2 * start + SIZE[1]] for start in range(NUM_PAIRS + 1)])


def pairs_per_second(flow: Callable[[np.ndarray], np.ndarray], frames: np.ndarray) -> float:
    """Return the speed of the second of two calls; the first one compiles and opens the device."""
    flow(frames)
    start = time.perf_counter()
    flow(frames)
    return (len(frames) - 1) / (time.perf_counter() - start)


def main() -> None:
    """Measure both backends and print their speeds."""
    from preprocess.flow import make_flow

    cv2.setNumThreads(1)
    frames = moving_frames()
    speeds = {
        "numba": pairs_per_second(make_flow("numba"), frames),
        "torch": pairs_per_second(make_flow("torch", device="cuda:0"), frames),
    }
    print(json.dumps(speeds))


if __name__ == "__main__":
    main()
