"""TV-L1 on one CPU core with compiled kernels: the default without a GPU. See docs/concepts/flow-kernels.md.

Shapes: N pairs of frames, H x W pixels of a pyramid level, n its row stride.
"""

from dataclasses import dataclass

import cv2
import numpy as np

from preprocess.flow.base import FlowParameters, check_frames, level_sizes
from preprocess.flow.numba_kernels.solver import solve_
from preprocess.flow.numba_kernels.warping import CHANNELS, PAD


@dataclass(frozen=True)
class Level:
    """The buffers of one pyramid level; `numba_kernels/iteration.py` describes their layout."""

    height: int
    width: int
    stride: int
    u: tuple[np.ndarray, ...]
    p: tuple[np.ndarray, ...]
    data: tuple[np.ndarray, ...]
    filtered: np.ndarray
    inside: np.ndarray
    packed: np.ndarray

    @staticmethod
    def empty(height: int, width: int) -> "Level":
        """Allocate zeroed buffers for a level of `height` x `width` pixels."""
        stride = -(-width // 8) * 8
        planes = staggered_planes(14, (height + 1) * stride + 8)
        inside = np.zeros(stride, np.float32)
        inside[: width - 1] = 1
        return Level(
            height=height,
            width=width,
            stride=stride,
            u=tuple(planes[:3]),
            p=tuple(planes[3:9]),
            data=tuple(planes[9:13]),
            filtered=planes[13],
            inside=inside,
            packed=np.zeros((height + 2 * PAD, width + 2 * PAD, CHANNELS), np.float32),
        )

    def image(self, plane: np.ndarray) -> np.ndarray:
        """Return the image (H, W) in a plane, as a view."""
        return plane[: self.height * self.stride].reshape(self.height, self.stride)[:, : self.width]


def staggered_planes(count: int, size: int) -> list[np.ndarray]:
    """Allocate `count` planes of `size` zeros that start at different offsets within a memory page.

    Loops read the same pixel of all planes; if their addresses differed by whole pages, they would compete for the
    same few lines of the L1 cache.
    """
    page, cache_line = 1024, 16  # in float32
    spacing = -(-size // page) * page + 5 * cache_line
    memory = np.zeros(count * spacing, np.float32)
    return [memory[k * spacing : k * spacing + size] for k in range(count)]


class NumbaFlow:
    """TV-L1 on one CPU core, without the GIL. Owns its buffers: use one object per thread.

    With `exact`, the flow equals OpenCV's to the last bit; without, a pair takes about 2/3 of the time.
    """

    def __init__(self, parameters: FlowParameters, *, exact: bool = True) -> None:
        self.name = "numba" if exact else "numba-fast"
        self.parameters, self._exact = parameters, exact
        self._levels: list[Level] = []

    def __call__(self, frames: np.ndarray) -> np.ndarray:
        """Return float32 flow (N, 2, H, W) in pixels, x first, of uint8 gray frames (N + 1, H, W)."""
        check_frames(frames)
        height, width = frames.shape[1:]
        if not self._levels or (self._levels[0].height, self._levels[0].width) != (height, width):
            self._levels = [Level.empty(*size) for size in level_sizes(height, width, self.parameters)]
        flow = np.empty((len(frames) - 1, 2, height, width), np.float32)
        first = self._pyramid(frames[0])
        for i in range(len(flow)):
            if np.array_equal(frames[i], frames[i + 1]):
                flow[i] = 0  # as in OpenCV; real videos repeat many frames
                continue
            second = self._pyramid(frames[i + 1])
            self._solve(first, second)
            for k in range(2):
                flow[i, k] = self._levels[0].image(self._levels[0].u[k])
            first = second
        return flow

    def _pyramid(self, frame: np.ndarray) -> list[np.ndarray]:
        """Return the frame as float32 in 0..255 at every level, the largest first."""
        step = self.parameters.scale_step
        images = [frame.astype(np.float32)]
        for _ in self._levels[1:]:
            images.append(cv2.resize(images[-1], None, fx=step, fy=step, interpolation=cv2.INTER_LINEAR))
        return images

    def _solve(self, first: list[np.ndarray], second: list[np.ndarray]) -> None:
        """Compute the flow between two pyramids, into the planes of level 0."""
        config = self.parameters
        for plane in self._levels[-1].u:
            plane[:] = 0
        for s in reversed(range(len(self._levels))):
            level = self._levels[s]
            solve_(
                first[s],
                second[s],
                level.packed,
                level.u,
                level.filtered,
                level.p,
                level.data,
                level.inside,
                level.stride,
                np.float32(config.lambda_ * config.theta),
                np.float32(config.theta),
                np.float32(config.tau / config.theta),
                np.float32(config.gamma),
                np.float32(config.epsilon**2 * level.height * level.width),
                config.warps,
                config.outer_iterations,
                config.inner_iterations,
                config.median_filtering,
                self._exact,
            )
            if s > 0:
                self._upsample(level, self._levels[s - 1])

    def _upsample(self, level: Level, finer: Level) -> None:
        """Resize the flow to the next finer level and scale it to that level's pixels; illumination is not scaled."""
        factors = [1 / self.parameters.scale_step] * 2 + [1.0] * (self.parameters.gamma > 0)
        for source, target, factor in zip(level.u, finer.u, factors, strict=False):
            size = (finer.width, finer.height)
            image = cv2.resize(level.image(source), size, interpolation=cv2.INTER_LINEAR)
            np.multiply(image, np.float32(factor), out=finer.image(target))
