"""Random augmentation parameters of a view, drawn once per clip, before any pixel is processed."""

import math
from dataclasses import dataclass

import numpy as np

from covid_cmsf.views.presets import Augmentation


@dataclass(frozen=True)
class GeometryParams:
    """The crop, in fractions of the frame's height and width, and whether the view is flipped.

    Fractions, so that RGB and flow of different sizes can use the same crop.
    """

    top: float
    left: float
    height: float
    width: float
    flip: bool


@dataclass(frozen=True)
class ColorJitterParams:
    """Factors (1 = unchanged) and the order in which they are applied; hue is a fraction of the color circle."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    order: tuple[int, ...]  # 0 brightness, 1 contrast, 2 saturation, 3 hue


@dataclass(frozen=True)
class SoundParams:
    """What is hidden of a spectrogram, from and to fractions of its width (time) and height (mels), and its gain."""

    time_mask: tuple[float, float]
    mel_mask: tuple[float, float]
    gain: float  # share of the levels


@dataclass(frozen=True)
class AugmentParams:
    """All random parameters of a view; None: the operation is not applied."""

    geometry: GeometryParams
    color_jitter: ColorJitterParams | None
    gray_channel: int | None  # -1: luma; 0, 1, 2: that channel
    blur_sigma: float | None
    sound: SoundParams | None = None


def sample_augment_params(
    augmentation: Augmentation, rng: np.random.Generator, *, height: int, width: int
) -> AugmentParams:
    """Draw the parameters of one view of a clip with frames of height x width pixels.

    All draws but the crop's attempts and a spectrogram's masks, which come last, take the same number of values from
    `rng` whatever their outcome, so pipelines with the same seed have the same flips and colors.
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
        sound=sample_sound(augmentation, rng) if augmentation.changes_sound else None,
    )


def sample_sound(augmentation: Augmentation, rng: np.random.Generator) -> SoundParams:
    """Draw one mask of time, one of mels, each of uniform width and place, and the gain."""
    masks = []
    for most in (augmentation.time_mask, augmentation.mel_mask):
        width, place = rng.random(2) * (most, 1.0)
        start = float(place * (1 - width))
        masks.append((start, start + float(width)))
    return SoundParams(masks[0], masks[1], gain=float(rng.uniform(-1, 1) * augmentation.gain))


def sample_geometry(
    augmentation: Augmentation, rng: np.random.Generator, *, height: int, width: int, flip: bool
) -> GeometryParams:
    """Draw a crop of random area and aspect ratio, up to `attempts` times until it fits; or a fixed one."""
    if augmentation.whole:
        return GeometryParams(0, 0, 1, 1, flip)
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
