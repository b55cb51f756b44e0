"""Patterns of grounds and objects, (rows, columns) from 0 (the first color) to 1 (the second).

Lengths are in pixels of the surface, times `scale`. Edges are soft, so that a pattern can be warped by parts of a
pixel.
"""

from collections.abc import Callable
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

Pattern: TypeAlias = NDArray[np.float32]


def cloud(rng: np.random.Generator, rows: int, columns: int, cell: float) -> Pattern:
    """Smooth noise with blobs of about `cell` pixels."""
    grid = rng.random((int(rows / cell) + 3, int(columns / cell) + 3), dtype=np.float32)
    return np.clip(cv2.resize(grid, (columns, rows), interpolation=cv2.INTER_CUBIC), 0.0, 1.0)


def clouds(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Large blobs with smaller ones on them."""
    large, small = scale * rng.uniform(16, 20), scale * rng.uniform(7, 9)
    return 0.6 * cloud(rng, rows, columns, large) + 0.4 * cloud(rng, rows, columns, small)


def stripes(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Stripes in any direction."""
    u, _ = _turned_grid(rng, rows, columns, scale * rng.uniform(11, 15))
    return _soft(np.sin(2 * np.pi * u))


def checks(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Two sets of stripes at a right angle."""
    u, v = _turned_grid(rng, rows, columns, scale * rng.uniform(13, 17))
    return 0.5 * (_soft(np.sin(2 * np.pi * u)) + _soft(np.sin(2 * np.pi * v)))


def dots(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Round spots in straight rows."""
    u, v = _turned_grid(rng, rows, columns, scale * rng.uniform(12, 16))
    return _soft(2.0 * (np.cos(2 * np.pi * u) + np.cos(2 * np.pi * v) - 0.6))


def bricks(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Courses of bricks, each shifted by half a brick."""
    u, v = _turned_grid(rng, rows, columns, scale * rng.uniform(10, 13))
    along = u / 2 + 0.5 * (np.floor(v) % 2)
    to_joint = np.minimum(2 * np.abs((along + 0.5) % 1.0 - 0.5), np.abs((v + 0.5) % 1.0 - 0.5))
    return _soft(12.0 * (to_joint - 0.12))


def rings(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """The rings of a tree around a point somewhere on the surface."""
    y, x = np.mgrid[:rows, :columns]
    center_y, center_x = rng.random(2) * (rows, columns)
    return _soft(np.sin(2 * np.pi * np.hypot(y - center_y, x - center_x) / (scale * rng.uniform(11, 15))))


PATTERNS: dict[str, Callable[[np.random.Generator, int, int, float], Pattern]] = {
    "clouds": clouds,
    "stripes": stripes,
    "checks": checks,
    "dots": dots,
    "bricks": bricks,
    "rings": rings,
}


def _turned_grid(
    rng: np.random.Generator, rows: int, columns: int, period: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Coordinates (rows, columns) along two axes in a random direction, counted in periods."""
    angle, start_u, start_v = rng.uniform(0, np.pi), rng.random(), rng.random()
    y, x = np.mgrid[:rows, :columns] / period
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * x + sin * y + start_u, cos * y - sin * x + start_v


def _soft(height: NDArray[np.float64]) -> Pattern:
    """A step from 0 to 1 with a soft edge, where `height` passes 0."""
    return (0.5 + 0.5 * np.tanh(2.0 * height)).astype(np.float32)
