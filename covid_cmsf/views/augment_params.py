"""The dice: everything random about a view, drawn once a clip, before any pixel is touched."""

import math
from dataclasses import dataclass

import numpy as np

from covid_cmsf.views.presets import Augmentation


@dataclass(frozen=True)
class GeometryParams:
    """Where the view is cut out of the frame, as shares of its height and width, and whether it is mirrored.

    Shares, so that RGB and flow of different sizes can use the same cut.
    """

    top: float
    left: float
    height: float
    width: float
    flip: bool


@dataclass(frozen=True)
class ColorJitterParams:
    """Factors (1 = unchanged) and the order in which they are applied; hue is a share of the color circle."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    order: tuple[int, ...]  # 0 brightness, 1 contrast, 2 saturation, 3 hue


@dataclass(frozen=True)
class AugmentParams:
    """All of one view's chances. None: that operation does not happen."""

    geometry: GeometryParams
    color_jitter: ColorJitterParams | None
    gray_channel: int | None  # -1: luma; 0, 1, 2: that channel
    blur_sigma: float | None


def sample_augment_params(
    augmentation: Augmentation, rng: np.random.Generator, *, height: int, width: int
) -> AugmentParams:
    """The chances of one view of a clip whose frames are height x width pixels.

    The number of values taken from `rng` does not depend on their outcome except in the crop's attempts, which come
    last, so pipelines that share a seed share flips and colors.
    """
    flip, jitter, gray, blur = rng.random(4)
    factors = rng.random(4)
    order = tuple(int(i) for i in rng.permutation(4))
    channel = int(rng.integers(3))
    sigma = float(rng.uniform(*augmentation.sigma))
    geometry = sample_geometry(augmentation, rng, height=height, width=width, flip=bool(flip < augmentation.flip))
    strengths = (augmentation.brightness, augmentation.contrast, augmentation.saturation)
    lows = [max(0.0, 1 - strength) for strength in strengths]
    brightness, contrast, saturation = (
        float(low + factor * (1 + strength - low))
        for low, strength, factor in zip(lows, strengths, factors[:3], strict=True)
    )
    hue = float((2 * factors[3] - 1) * augmentation.hue)
    return AugmentParams(
        geometry=geometry,
        color_jitter=ColorJitterParams(brightness, contrast, saturation, hue, order)
        if jitter < augmentation.jitter
        else None,
        gray_channel=(channel if augmentation.gray_by == "channel" else -1) if gray < augmentation.gray else None,
        blur_sigma=sigma if blur < augmentation.blur else None,
    )


def sample_geometry(
    augmentation: Augmentation, rng: np.random.Generator, *, height: int, width: int, flip: bool
) -> GeometryParams:
    """The cut: random area and shape, tried until it fits; or the center square."""
    if augmentation.center is not None:
        side = augmentation.center * min(height, width)
        return _center_crop(side, side, height, width, flip)
    low, high = (math.log(value) for value in augmentation.ratio)
    for _ in range(augmentation.attempts):
        area = rng.uniform(*augmentation.scale) * height * width
        ratio = math.exp(rng.uniform(low, high))
        crop_width, crop_height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < crop_width <= width and 0 < crop_height <= height:
            top = int(rng.integers(height - crop_height + 1))
            left = int(rng.integers(width - crop_width + 1))
            return GeometryParams(top / height, left / width, crop_height / height, crop_width / width, flip)
    if augmentation.squash:
        return GeometryParams(0, 0, 1, 1, flip)
    aspect = min(max(width / height, augmentation.ratio[0]), augmentation.ratio[1])  # largest center crop
    crop_width, crop_height = min(width, round(height * aspect)), min(height, round(width / aspect))
    return _center_crop(crop_height, crop_width, height, width, flip)


def _center_crop(crop_height: float, crop_width: float, height: int, width: int, flip: bool) -> GeometryParams:
    return GeometryParams(
        top=(height - crop_height) / 2 / height,
        left=(width - crop_width) / 2 / width,
        height=crop_height / height,
        width=crop_width / width,
        flip=flip,
    )
