"""The appearance of a group: what all its clips have in common, and what misleads RGB.

Lighting, directions of patterns, the object's colors and texture, and static clutter (objects of any kind, painted on
the background) are drawn per group, independently of the class. The background is correlated with the class, as a
pool is with swimming: at difficulty 0 every group has the background of its class, at difficulty 1 about half of them.
Nothing here moves, so flow does not show it.
Shapes: H x W pixels of the frame, S side of a sprite. Lengths are in half frame heights unless in pixels.
"""

import colorsys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import cv2
import numpy as np
from numpy.typing import NDArray

from preprocess.synthetic import shapes
from preprocess.synthetic.config import CLASS_NAMES

Image: TypeAlias = NDArray[np.float32]  # RGB from 0 to 255, or one channel from 0 to 1
Pattern: TypeAlias = NDArray[np.float32]  # (rows, columns) from 0 (first color) to 1 (second color)
BACKGROUND_HALF_SIZE = (2.2, 1.8)  # half the width and height of the painted background, in half frame heights


@dataclass(frozen=True)
class BackgroundStyle:
    """A kind of background: a pattern, fine or coarse, and its mean hue."""

    pattern: str
    scale: float
    hue: float


FINE, COARSE = 1.1, 2.2
HUE_SPREAD = 0.2  # standard deviation; the 12 mean hues are 1/12 apart, so color alone hardly predicts the class
# The background of most of a class's groups.
CLASS_BACKGROUNDS = {
    "Bounce": BackgroundStyle("checks", FINE, hue=0.75),
    "FigureEight": BackgroundStyle("clouds", FINE, hue=0.57),
    "Meet": BackgroundStyle("bricks", FINE, hue=0.02),
    "Orbit": BackgroundStyle("checks", COARSE, hue=0.17),
    "Pendulum": BackgroundStyle("rings", FINE, hue=0.09),
    "Pulse": BackgroundStyle("dots", FINE, hue=0.66),
    "Roll": BackgroundStyle("stripes", FINE, hue=0.83),
    "SeeSaw": BackgroundStyle("rings", COARSE, hue=0.49),
    "Shake": BackgroundStyle("bricks", COARSE, hue=0.25),
    "Slide": BackgroundStyle("stripes", COARSE, hue=0.92),
    "Spin": BackgroundStyle("dots", COARSE, hue=0.33),
    "Spiral": BackgroundStyle("clouds", COARSE, hue=0.41),
}
assert tuple(CLASS_BACKGROUNDS) == CLASS_NAMES


@dataclass(frozen=True)
class Appearance:
    """What all clips of a group share.

    `ground` (rows, columns, 3) is the textured surface, `background` the same with clutter, `sprite` (S, S, 4) the
    object with alpha last, `light` (H, W, 3) a gain, `radius` that of the body in half frame heights.
    """

    ground: Image
    background: Image
    sprite: Image
    light: Image
    radius: float


def sample_appearance(
    rng: np.random.Generator,
    *,
    kind: str,
    class_background: BackgroundStyle,
    width: int,
    height: int,
    difficulty: float,
) -> Appearance:
    """Draw a group's appearance, for a class with this kind of object and this background."""
    columns, rows = (round(half_size * height) for half_size in BACKGROUND_HALF_SIZE)
    use_class_background = rng.random() >= difficulty / 2
    style = class_background if use_class_background else CLASS_BACKGROUNDS[str(rng.choice(list(CLASS_BACKGROUNDS)))]
    ground_colors = random_colors(rng, hue=style.hue + rng.normal(0.0, HUE_SPREAD))
    ground = paint_texture(rng, rows, columns, ground_colors, style.pattern, scale=style.scale, unit=height / 84)
    background = ground.copy()
    for _ in range(round(6 * difficulty)):
        add_clutter_(background, rng, side=height // 2)
    # With fewer candidates to choose from, the object has less contrast to the ground.
    colors = most_distant(ground_colors, [random_colors(rng) for _ in range(1 + round(3 * (1 - difficulty)))])
    sprite = render_sprite(rng, kind, colors, side=height)
    return Appearance(ground, background, sprite, sample_lighting(rng, width, height), radius=rng.uniform(0.32, 0.42))


def render_sprite(rng: np.random.Generator, kind: str, colors: Image, side: int) -> Image:
    """Draw a textured object (S, S, 4) with its mask from 0 to 1 as the last channel."""
    mask = shapes.rasterize(shapes.OBJECT_SHAPES[kind](rng), side)
    pattern = str(rng.choice(list(PATTERNS)))
    surface = paint_texture(rng, side, side, colors, pattern, scale=1.0, unit=side / 84)
    return np.concatenate([surface, mask[..., None]], axis=2)


def add_clutter_(background: Image, rng: np.random.Generator, side: int) -> None:
    """Paint one static object of a random kind at a random position of the background, in place."""
    kind = str(rng.choice(list(shapes.OBJECT_SHAPES)))
    size = int(side * rng.uniform(0.5, 1.1))
    sprite = render_sprite(rng, kind, random_colors(rng), size)
    quarter_turns = int(rng.integers(4))
    sprite = np.rot90(sprite, quarter_turns)
    row, column = rng.integers(background.shape[0] - size), rng.integers(background.shape[1] - size)
    region = background[row : row + size, column : column + size]
    region += sprite[..., 3:] * (sprite[..., :3] - region)


def sample_lighting(rng: np.random.Generator, width: int, height: int) -> Image:
    """Draw a gain (H, W, 3) as of a lamp on one side: brightness, tint and fall-off."""
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    falloff = 1.0 + rng.uniform(0.0, 0.3) * (np.cos(angle) * x + np.sin(angle) * y)
    tint = rng.uniform(0.7, 1.1) * rng.uniform(0.88, 1.12, size=3)
    gain: NDArray[np.float64] = falloff[..., None] * tint
    return gain.astype(np.float32)


def paint_texture(
    rng: np.random.Generator, rows: int, columns: int, colors: Image, pattern: str, *, scale: float, unit: float
) -> Image:
    """Paint a surface (rows, columns, 3) of two colors in this pattern, with fine noise that flow can track."""
    texture = PATTERNS[pattern](rng, rows, columns, unit * scale)
    blend = 0.85 * texture + 0.15 * smooth_noise(rng, rows, columns, cell=unit * rng.uniform(4, 8))
    surface: Image = colors[0] + blend[..., None] * (colors[1] - colors[0])
    return surface


def random_colors(rng: np.random.Generator, *, hue: float | None = None) -> Image:
    """Draw a darker and a lighter RGB color (2, 3) of about this hue (None: any)."""
    base_hue = rng.random() if hue is None else hue
    saturation, value = rng.uniform(0.3, 0.8), rng.uniform(0.25, 0.6)
    dark = colorsys.hsv_to_rgb(base_hue % 1.0, saturation, value)
    light = colorsys.hsv_to_rgb(
        (base_hue + rng.normal(0.0, 0.03)) % 1.0, saturation * rng.uniform(0.5, 1.0), value + 0.35
    )
    return 255.0 * np.array([dark, light], np.float32)


def most_distant(ground: Image, candidates: list[Image]) -> Image:
    """Return the candidate whose mean color is farthest from the ground's."""
    return max(candidates, key=lambda colors: float(np.linalg.norm(colors.mean(0) - ground.mean(0))))


# Patterns (rows, columns) of grounds and objects. Lengths are in pixels of the surface, times `scale`. Edges are soft,
# so that a pattern can be warped by fractions of a pixel.


def smooth_noise(rng: np.random.Generator, rows: int, columns: int, cell: float) -> Pattern:
    """Draw smooth noise with blobs of about `cell` pixels."""
    grid = rng.random((int(rows / cell) + 3, int(columns / cell) + 3), dtype=np.float32)
    noise: Pattern = cv2.resize(grid, (columns, rows), interpolation=cv2.INTER_CUBIC)
    return noise.clip(0.0, 1.0)


def clouds(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Draw large blobs with smaller ones on them."""
    large, small = scale * rng.uniform(16, 20), scale * rng.uniform(7, 9)
    return 0.6 * smooth_noise(rng, rows, columns, large) + 0.4 * smooth_noise(rng, rows, columns, small)


def stripes(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Draw stripes in a random direction."""
    u, _ = _rotated_grid(rng, rows, columns, scale * rng.uniform(11, 15))
    return _soft_step(np.sin(2 * np.pi * u))


def checks(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Draw two sets of stripes at a right angle."""
    u, v = _rotated_grid(rng, rows, columns, scale * rng.uniform(13, 17))
    return 0.5 * (_soft_step(np.sin(2 * np.pi * u)) + _soft_step(np.sin(2 * np.pi * v)))


def dots(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Draw round spots in straight rows."""
    u, v = _rotated_grid(rng, rows, columns, scale * rng.uniform(12, 16))
    return _soft_step(2.0 * (np.cos(2 * np.pi * u) + np.cos(2 * np.pi * v) - 0.6))


def bricks(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Draw rows of bricks, each shifted by half a brick."""
    u, v = _rotated_grid(rng, rows, columns, scale * rng.uniform(10, 13))
    along = u / 2 + 0.5 * (np.floor(v) % 2)
    to_joint = np.minimum(2 * np.abs((along + 0.5) % 1.0 - 0.5), np.abs((v + 0.5) % 1.0 - 0.5))
    return _soft_step(12.0 * (to_joint - 0.12))


def rings(rng: np.random.Generator, rows: int, columns: int, scale: float) -> Pattern:
    """Draw concentric rings around a random point of the surface."""
    y, x = np.mgrid[:rows, :columns]
    center_y, center_x = rng.random(2) * (rows, columns)
    return _soft_step(np.sin(2 * np.pi * np.hypot(y - center_y, x - center_x) / (scale * rng.uniform(11, 15))))


PATTERNS: dict[str, Callable[[np.random.Generator, int, int, float], Pattern]] = {
    "clouds": clouds,
    "stripes": stripes,
    "checks": checks,
    "dots": dots,
    "bricks": bricks,
    "rings": rings,
}


def _rotated_grid(
    rng: np.random.Generator, rows: int, columns: int, period: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return coordinates (rows, columns) along two perpendicular axes in a random direction, in periods."""
    angle, start_u, start_v = rng.uniform(0, np.pi), rng.random(), rng.random()
    y, x = np.mgrid[:rows, :columns] / period
    cos, sin = np.cos(angle), np.sin(angle)
    return cos * x + sin * y + start_u, cos * y - sin * x + start_v


def _soft_step(height: NDArray[np.float64]) -> Pattern:
    """Return a step from 0 to 1 with a soft edge, where `height` passes 0."""
    return (0.5 + 0.5 * np.tanh(2.0 * height)).astype(np.float32)
