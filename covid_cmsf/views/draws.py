"""The dice: everything random about a view, drawn once a clip, before any pixel is touched."""

import math
from dataclasses import dataclass

import numpy as np

from covid_cmsf.views.augmentation import Augmentation


@dataclass(frozen=True)
class Geometry:
    """Where the view is cut out of the frame, as shares of its height and width, and whether it is mirrored.

    Shares, so that RGB and flow of different sizes can use the same cut.
    """

    top: float
    left: float
    height: float
    width: float
    flip: bool


@dataclass(frozen=True)
class Color:
    """Factors (1 = unchanged) and the order in which they are applied; hue is a share of the color circle."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    order: tuple[int, ...]  # 0 brightness, 1 contrast, 2 saturation, 3 hue


@dataclass(frozen=True)
class ViewDraw:
    """All of one view's chances. None: that operation does not happen."""

    geometry: Geometry
    color: Color | None
    gray: int | None  # -1: luma; 0, 1, 2: that channel
    sigma: float | None


def draw_view(settings: Augmentation, rng: np.random.Generator, *, height: int, width: int) -> ViewDraw:
    """The chances of one view of a clip whose frames are height x width pixels.

    The number of values taken from `rng` does not depend on their outcome except in the crop's attempts, which come
    last, so pipelines that share a seed share flips and colors.
    """
    flip, jitter, gray, blur = rng.random(4)
    factors = rng.random(4)
    order = tuple(int(i) for i in rng.permutation(4))
    channel = int(rng.integers(3))
    sigma = float(rng.uniform(*settings.sigma))
    geometry = draw_geometry(settings, rng, height=height, width=width, flip=bool(flip < settings.flip))
    strengths = (settings.brightness, settings.contrast, settings.saturation)
    lows = [max(0.0, 1 - strength) for strength in strengths]
    brightness, contrast, saturation = (
        float(low + factor * (1 + strength - low))
        for low, strength, factor in zip(lows, strengths, factors[:3], strict=True)
    )
    hue = float((2 * factors[3] - 1) * settings.hue)
    return ViewDraw(
        geometry=geometry,
        color=Color(brightness, contrast, saturation, hue, order) if jitter < settings.jitter else None,
        gray=(channel if settings.gray_by == "channel" else -1) if gray < settings.gray else None,
        sigma=sigma if blur < settings.blur else None,
    )


def draw_geometry(settings: Augmentation, rng: np.random.Generator, *, height: int, width: int, flip: bool) -> Geometry:
    """The cut: random area and shape, tried until it fits; or the center square."""
    if settings.center is not None:
        side = settings.center * min(height, width)
        return _centered(side, side, height, width, flip)
    low, high = (math.log(value) for value in settings.ratio)
    for _ in range(settings.attempts):
        area = rng.uniform(*settings.scale) * height * width
        ratio = math.exp(rng.uniform(low, high))
        cut_width, cut_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < cut_width <= width and 0 < cut_height <= height:
            top = int(rng.integers(height - cut_height + 1))
            left = int(rng.integers(width - cut_width + 1))
            return Geometry(top / height, left / width, cut_height / height, cut_width / width, flip)
    if settings.squash:
        return Geometry(0, 0, 1, 1, flip)
    limited = min(max(width / height, settings.ratio[0]), settings.ratio[1])  # the largest central cut of legal shape
    cut_width, cut_height = min(width, round(height * limited)), min(height, round(width / limited))
    return _centered(cut_height, cut_width, height, width, flip)


def _centered(cut_height: float, cut_width: float, height: int, width: int, flip: bool) -> Geometry:
    return Geometry(
        top=(height - cut_height) / 2 / height,
        left=(width - cut_width) / 2 / width,
        height=cut_height / height,
        width=cut_width / width,
        flip=flip,
    )
