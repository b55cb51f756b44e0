"""How a group looks: what all its clips share and what misleads RGB.

# H W pixels of the frame, S side of a sprite

Light, shades, directions of patterns, the object's colors and texture, and still clutter (objects of any kind, painted
on the background) are drawn for each group and say nothing about the class. The ground hints at the class, as a pool
hints at swimmers: without difficulty every group is at home, with difficulty 1 every other one. Nothing here moves, so
flow doesn't see it.
"""

import colorsys
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from preprocess.demo_videos import shapes
from preprocess.demo_videos.names import CLASS_NAMES
from preprocess.demo_videos.patterns import PATTERNS, cloud

Image: TypeAlias = NDArray[np.float32]  # RGB from 0 to 255, or one channel from 0 to 1
BACKGROUND_REACH = (2.2, 1.8)  # half the width and height of the painted background, in half frame heights


@dataclass(frozen=True)
class Place:
    """A kind of ground: a pattern, fine or coarse, and its usual hue."""

    pattern: str
    scale: float
    hue: float


FINE, COARSE = 1.1, 2.2
HUE_SPREAD = 0.2  # within a place; twelve hues share the circle, so color alone says next to nothing
# Where a class is at home: the place of most of its groups.
HOMES = {
    "Bounce": Place("checks", FINE, hue=0.75),
    "FigureEight": Place("clouds", FINE, hue=0.57),
    "Meet": Place("bricks", FINE, hue=0.02),
    "Orbit": Place("checks", COARSE, hue=0.17),
    "Pendulum": Place("rings", FINE, hue=0.09),
    "Pulse": Place("dots", FINE, hue=0.66),
    "Roll": Place("stripes", FINE, hue=0.83),
    "SeeSaw": Place("rings", COARSE, hue=0.49),
    "Shake": Place("bricks", COARSE, hue=0.25),
    "Slide": Place("stripes", COARSE, hue=0.92),
    "Spin": Place("dots", COARSE, hue=0.33),
    "Spiral": Place("clouds", COARSE, hue=0.41),
}
assert tuple(HOMES) == CLASS_NAMES


@dataclass(frozen=True)
class Look:
    """`ground` (rows, columns, 3) and the same with clutter, `background`; `sprite` (S, S, 4), alpha last;
    `light` (H, W, 3); `radius` of the body in half frame heights.
    """

    ground: Image
    background: Image
    sprite: Image
    light: Image
    radius: float


def draw_look(rng: np.random.Generator, *, kind: str, home: Place, width: int, height: int, difficulty: float) -> Look:
    """Draws a group's look for a class whose object is of this kind and at home in this place."""
    columns, rows = (round(reach * height) for reach in BACKGROUND_REACH)
    at_home = rng.random() >= difficulty / 2
    place = home if at_home else HOMES[str(rng.choice(list(HOMES)))]
    ground_colors = random_colors(rng, hue=place.hue + rng.normal(0.0, HUE_SPREAD))
    ground = paint(rng, rows, columns, ground_colors, place.pattern, scale=place.scale, unit=height / 84)
    background = ground.copy()
    for _ in range(round(6 * difficulty)):
        add_clutter(background, rng, side=height // 2)
    # With fewer candidates to choose from, the object stands out less.
    colors = most_different(ground_colors, [random_colors(rng) for _ in range(1 + round(3 * (1 - difficulty)))])
    sprite = draw_sprite(rng, kind, colors, side=height)
    return Look(ground, background, sprite, draw_light(rng, width, height), radius=rng.uniform(0.32, 0.42))


def draw_sprite(rng: np.random.Generator, kind: str, colors: Image, side: int) -> Image:
    """A textured object (S, S, 4) with its mask from 0 to 1 as the last channel."""
    mask = shapes.mask(shapes.KINDS[kind](rng), side)
    pattern = str(rng.choice(list(PATTERNS)))
    surface = paint(rng, side, side, colors, pattern, scale=1.0, unit=side / 84)
    return np.concatenate([surface, mask[..., None]], axis=2)


def add_clutter(background: Image, rng: np.random.Generator, side: int) -> None:
    """Paints one still object of any kind somewhere on the background, in place."""
    kind = str(rng.choice(list(shapes.KINDS)))
    size = int(side * rng.uniform(0.5, 1.1))
    sprite = draw_sprite(rng, kind, random_colors(rng), size)
    quarter_turns = int(rng.integers(4))
    sprite = np.rot90(sprite, quarter_turns)
    row, column = rng.integers(background.shape[0] - size), rng.integers(background.shape[1] - size)
    place = background[row : row + size, column : column + size]
    place += sprite[..., 3:] * (sprite[..., :3] - place)


def draw_light(rng: np.random.Generator, width: int, height: int) -> Image:
    """The gain (H, W, 3) of a lamp on one side: brightness, tint and fall-off."""
    angle = rng.uniform(0, 2 * np.pi)
    y, x = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j]
    fall_off = 1.0 + rng.uniform(0.0, 0.3) * (np.cos(angle) * x + np.sin(angle) * y)
    tint = rng.uniform(0.7, 1.1) * rng.uniform(0.88, 1.12, size=3)
    return (fall_off[..., None] * tint).astype(np.float32)


def paint(
    rng: np.random.Generator, rows: int, columns: int, colors: Image, pattern: str, *, scale: float, unit: float
) -> Image:
    """A surface (rows, columns, 3) of two colors in this pattern; fine noise, without a scale, gives flow a hold."""
    drawn = PATTERNS[pattern](rng, rows, columns, unit * scale)
    mixture = 0.85 * drawn + 0.15 * cloud(rng, rows, columns, cell=unit * rng.uniform(4, 8))
    return colors[0] + mixture[..., None] * (colors[1] - colors[0])


def random_colors(rng: np.random.Generator, *, hue: float | None = None) -> Image:
    """Two RGB colors (2, 3) of about this hue or any, a darker and a lighter one."""
    middle = rng.random() if hue is None else hue
    saturation, value = rng.uniform(0.3, 0.8), rng.uniform(0.25, 0.6)
    dark = colorsys.hsv_to_rgb(middle % 1.0, saturation, value)
    light = colorsys.hsv_to_rgb(
        (middle + rng.normal(0.0, 0.03)) % 1.0, saturation * rng.uniform(0.5, 1.0), value + 0.35
    )
    return 255.0 * np.array([dark, light], np.float32)


def most_different(ground: Image, candidates: list[Image]) -> Image:
    """The candidate whose mean color is farthest from the ground's."""
    return max(candidates, key=lambda colors: float(np.linalg.norm(colors.mean(0) - ground.mean(0))))
