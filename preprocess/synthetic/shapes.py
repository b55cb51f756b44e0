"""Shapes of the kinds of objects, as polygons and masks; details (a star's number of rays) are drawn per group.

Shapes: S side of the sprite in pixels, N corners. Polygons are in radii of the body around its center.
"""

from collections.abc import Callable
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

Array: TypeAlias = NDArray[np.float64]
MARGIN = 1.3  # half the sprite's side, in radii of the body
SUPERSAMPLING = 4


def ball(rng: np.random.Generator) -> list[Array]:
    """Return a disk."""
    return [_polar_polygon(64, np.ones(64))]


def box(rng: np.random.Generator) -> list[Array]:
    """Draw a rectangle that is nearly a square."""
    half_width, half_height = rng.uniform(0.75, 0.95, size=2)
    return [_rectangle(half_width, half_height)]


def kite(rng: np.random.Generator) -> list[Array]:
    """Draw a quadrilateral with one long end."""
    waist, shoulder = rng.uniform(0.6, 0.8), rng.uniform(0.1, 0.4)
    return [np.array([[0.0, -1.0], [waist, -shoulder], [0.0, 1.2], [-waist, -shoulder]])]


def plank(rng: np.random.Generator) -> list[Array]:
    """Draw a long, thin, horizontal rectangle."""
    return [_rectangle(1.25, rng.uniform(0.25, 0.4))]


def star(rng: np.random.Generator) -> list[Array]:
    """Draw a star with four to six rays."""
    num_rays = int(rng.integers(4, 7))
    return [_polar_polygon(2 * num_rays, np.tile([1.15, rng.uniform(0.4, 0.55)], num_rays))]


def wheel(rng: np.random.Generator) -> list[Array]:
    """Draw a rim with three to five spokes."""
    num_spokes, half_width = int(rng.integers(3, 6)), rng.uniform(0.1, 0.16)
    rim = np.concatenate([_polar_polygon(64, np.ones(64)), _polar_polygon(64, np.full(64, 0.72))[::-1]])
    spoke = np.array([[-half_width, 0.0], [half_width, 0.0], [half_width, 0.8], [-half_width, 0.8]])
    turns = [2 * np.pi * i / num_spokes for i in range(num_spokes)]
    return [rim, *(spoke @ np.array([[np.cos(a), np.sin(a)], [-np.sin(a), np.cos(a)]]) for a in turns)]


OBJECT_SHAPES: dict[str, Callable[[np.random.Generator], list[Array]]] = {
    "ball": ball,
    "box": box,
    "kite": kite,
    "plank": plank,
    "star": star,
    "wheel": wheel,
}


def rasterize(outlines: list[Array], side: int) -> NDArray[np.float32]:
    """Fill polygons (N, 2) and return an antialiased mask (S, S) from 0 to 1."""
    fine = side * SUPERSAMPLING
    canvas: NDArray[np.uint8] = np.zeros((fine, fine), np.uint8)
    for outline in outlines:
        corners = np.round((outline / MARGIN + 1.0) * fine / 2).astype(np.int32)
        cv2.fillPoly(canvas, [corners], 255)
    small: NDArray[np.uint8] = cv2.resize(canvas, (side, side), interpolation=cv2.INTER_AREA)
    return small.astype(np.float32) / 255.0


def _polar_polygon(num_corners: int, radii: Array) -> Array:
    """Return corners (N, 2) at equal angles with these radii (N,), the first one on top."""
    angles = 2 * np.pi * np.arange(num_corners) / num_corners
    return np.stack([np.sin(angles), -np.cos(angles)], axis=1) * radii[:, None]


def _rectangle(half_width: float, half_height: float) -> Array:
    return np.array([[-1.0, -1.0], [1.0, -1.0], [1.0, 1.0], [-1.0, 1.0]]) * [half_width, half_height]
