"""Augmentation operations on whole clips (T, C, H, W), on any device: crop and resize, flip, color, blur.

Color operations take float clips in 0..1 and have torchvision's definitions. Names that end with `_` work in place and
return their argument: a view passes through several of them, and memory traffic dominates their cost.
Shapes: T frames, C channels, H x W pixels.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.views.augment_params import ColorJitterParams, GeometryParams, SoundParams

LUMA = (0.2989, 0.587, 0.114)


def crop_resize(clip: Tensor, geometry: GeometryParams, size: int, *, interpolation: str = "bilinear") -> Tensor:
    """Crop (T, C, H, W), uint8 or float, and resize to (T, C, size, size), antialiased.

    Does not flip (see `hflip`), and does not scale values: flow stays in pixels of the stored frame.
    """
    top, bottom, left, right = crop_box(geometry, *clip.shape[-2:])
    cropped = clip[..., top:bottom, left:right]
    if cropped.shape[-2:] == (size, size):
        return cropped
    return interpolate(cropped, (size, size), interpolation=interpolation)


def interpolate(clip: Tensor, shape: tuple[int, int], *, interpolation: str, antialias: bool = True) -> Tensor:
    """Resize (T, C, H, W), uint8 or float, to a height and width."""
    if clip.dtype == torch.uint8 and clip.device.type != "cpu":  # only the CPU has a uint8 kernel
        resized = F.interpolate(clip.float(), shape, mode=interpolation, antialias=antialias)
        return resized.round_().clamp_(0, 255).to(torch.uint8)
    return F.interpolate(clip, shape, mode=interpolation, antialias=antialias)


def crop_box(geometry: GeometryParams, height: int, width: int) -> tuple[int, int, int, int]:
    """Return top, bottom, left and right of a crop in pixels; bottom and right are the first outside of it."""
    top, left = round(geometry.top * height), round(geometry.left * width)
    bottom = min(height, top + max(1, round(geometry.height * height)))
    right = min(width, left + max(1, round(geometry.width * width)))
    return top, bottom, left, right


def hflip(clip: Tensor) -> Tensor:
    """Flip horizontally. For flow, x must be negated as well: see `modalities`."""
    return clip.flip(-1)


# Color


def luma(clip: Tensor) -> Tensor:
    """Return the luma (T, 1, H, W) of an RGB clip (T, 3, H, W), with the weights of ITU-R 601."""
    red, green, blue = clip.unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2]).unsqueeze(1)


def brightness_(clip: Tensor, factor: float) -> Tensor:
    """Scale the brightness: 0 is black, 1 leaves the clip unchanged."""
    return clip.mul_(factor).clamp_(0, 1)


def contrast_(clip: Tensor, factor: float) -> Tensor:
    """Scale the contrast about each frame's mean luma: 0 is uniform gray, 1 leaves the clip unchanged."""
    mean = luma(clip).mean(dim=(1, 2, 3), keepdim=True)  # (T, 1, 1, 1)
    return clip.mul_(factor).add_(mean, alpha=1 - factor).clamp_(0, 1)


def saturation_(clip: Tensor, factor: float) -> Tensor:
    """Scale the saturation: 0 is gray, 1 leaves the clip unchanged."""
    gray = luma(clip)
    return clip.mul_(factor).add_(gray, alpha=1 - factor).clamp_(0, 1)


def hue_(clip: Tensor, shift: float) -> Tensor:
    """Rotate the hue by `shift` of the color circle (-0.5..0.5), keeping value and chroma (HSV)."""
    red, green, blue = clip.unbind(1)
    high = clip.amax(1)
    chroma = high - clip.amin(1)
    # Hue in sixths of the color circle, 0 = red; arbitrary for gray, where chroma is 0.
    from_green = (blue - red).add_(chroma, alpha=2)
    from_blue = (red - green).add_(chroma, alpha=4)
    # 0 where the channel is the maximum, else 1: on a CPU several times faster than `torch.where`.
    not_red, not_green = (high - red).ceil_(), (high - green).ceil_()
    sixth = torch.lerp(green - blue, torch.lerp(from_green, from_blue, not_green), not_red)
    sixth.div_(chroma.clamp(min=1e-8)).add_(6 * shift)
    # HSV to RGB: high - chroma * clip(2 - d, 0, 1), where d is the distance (mod 6) to the channel's darkest hue.
    dark_points = torch.tensor([3.0, 1.0, -1.0], device=clip.device).view(3, 1, 1)
    d = sixth.unsqueeze(1) + dark_points  # (T, 3, H, W)
    d.sub_((d * (1 / 6)).round_(), alpha=6).abs_()
    torch.addcmul(high.unsqueeze(1), chroma.unsqueeze(1), (2 - d).clamp_(0, 1), value=-1, out=clip)
    return clip


def jitter_(clip: Tensor, params: ColorJitterParams) -> Tensor:
    """Apply brightness, contrast, saturation and hue in the drawn order."""
    for operation in params.order:
        if operation == 0:
            brightness_(clip, params.brightness)
        elif operation == 1:
            contrast_(clip, params.contrast)
        elif operation == 2:
            saturation_(clip, params.saturation)
        else:
            hue_(clip, params.hue)
    return clip


def gray_(clip: Tensor, channel: int) -> Tensor:
    """Set all three channels to the luma (`channel` -1) or to one of the channels."""
    return clip.copy_((luma(clip) if channel < 0 else clip[:, channel : channel + 1].clone()).expand_as(clip))


# Blur


def blur_radius(sigma: float, limit: int) -> int:
    """Return the distance in pixels beyond which a blur has no weight: 3 sigma, at least 1, at most `limit`."""
    return max(1, min(math.ceil(3 * sigma), limit))


def gaussian_weights(sigma: float, limit: int) -> list[float]:
    """Return the weights at distance 0, 1, 2, ... up to 3 sigma, at most `limit`; both sides sum to 1."""
    radius = blur_radius(sigma, limit)
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(radius + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    return [weight / total for weight in weights]


def blur_(clip: Tensor, sigma: float) -> Tensor:
    """Blur every frame of a float clip (T, C, H, W) with reflected borders, in place.

    A sum of shifted copies: for these small kernels several times faster on a CPU than a depthwise convolution.
    """
    height, width = clip.shape[-2:]
    weights = gaussian_weights(sigma, min(height, width) - 1)
    radius = len(weights) - 1
    padded = F.pad(clip, (radius, radius, 0, 0), mode="reflect")
    torch.mul(padded[..., radius : radius + width], weights[0], out=clip)
    for i, weight in enumerate(weights[1:], start=1):
        clip.add_(padded[..., radius - i : radius - i + width], alpha=weight)
        clip.add_(padded[..., radius + i : radius + i + width], alpha=weight)
    padded = F.pad(clip, (0, 0, radius, radius), mode="reflect")
    torch.mul(padded[..., radius : radius + height, :], weights[0], out=clip)
    for i, weight in enumerate(weights[1:], start=1):
        clip.add_(padded[..., radius - i : radius - i + height, :], alpha=weight)
        clip.add_(padded[..., radius + i : radius + i + height, :], alpha=weight)
    return clip


# Sound


def change_sound(spectrogram: Tensor, params: SoundParams, *, hidden: int) -> Tensor:
    """Return a spectrogram, uint8 (..., H, W), louder or softer, with masked mels and times at the level `hidden`."""
    changed = (spectrogram.int() + round(255 * params.gain)).clamp_(0, 255).to(torch.uint8)
    height, width = spectrogram.shape[-2:]
    first, end = (round(fraction * height) for fraction in params.mel_mask)
    changed[..., first:end, :] = hidden
    first, end = (round(fraction * width) for fraction in params.time_mask)
    changed[..., first:end] = hidden
    return changed
