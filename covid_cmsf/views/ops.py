"""Cutting views out of clips: crop, resize, hflip."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.views.augment_params import ColorJitterParams, GeometryParams

# T frames, C channels, H W pixels


def crop_resize(clip: Tensor, geometry: GeometryParams, size: int) -> Tensor:
    """(T, C, H, W) uint8 or float -> (T, C, size, size) of the same type: crop and antialiased bilinear resize.

    Values are kept: flow stays in pixels of the stored frame, whatever the resize. Mirroring is `hflip`'s work.
    """
    height, width = clip.shape[-2:]
    top, left = round(geometry.top * height), round(geometry.left * width)
    bottom = min(height, top + max(1, round(geometry.height * height)))
    right = min(width, left + max(1, round(geometry.width * width)))
    cropped = clip[..., top:bottom, left:right]
    if cropped.shape[-2:] == (size, size):
        return cropped
    if clip.dtype == torch.uint8 and clip.device.type != "cpu":  # only the CPU has the integer kernel
        resized = F.interpolate(cropped.float(), (size, size), mode="bilinear", antialias=True)
        return resized.round_().clamp_(0, 255).to(torch.uint8)
    return F.interpolate(cropped, (size, size), mode="bilinear", antialias=True)


def hflip(clip: Tensor) -> Tensor:
    """Left becomes right. For flow the sign of x must change as well: see `modalities`."""
    return clip.flip(-1)


# Color operations on whole clips: float (T, 3, H, W) in 0..1, on any device; torchvision's definitions.
#
# All of them work in place on their argument and return it: a view passes through several, and memory traffic is what
# they cost.

# T frames, H W pixels


LUMA = (0.2989, 0.587, 0.114)


def luma(clip: Tensor) -> Tensor:
    """(T, 3, H, W) -> (T, 1, H, W), the weights of ITU-R 601."""
    red, green, blue = clip.unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2]).unsqueeze(1)


def brightness_(clip: Tensor, factor: float) -> Tensor:
    """Toward black (factor 0) or beyond the picture (above 1)."""
    return clip.mul_(factor).clamp_(0, 1)


def contrast_(clip: Tensor, factor: float) -> Tensor:
    """Toward each frame's mean luma."""
    mean = luma(clip).mean(dim=(1, 2, 3), keepdim=True)  # (T, 1, 1, 1)
    return clip.mul_(factor).add_(mean, alpha=1 - factor).clamp_(0, 1)


def saturation_(clip: Tensor, factor: float) -> Tensor:
    """Toward gray."""
    gray = luma(clip)
    return clip.mul_(factor).add_(gray, alpha=1 - factor).clamp_(0, 1)


def hue_(clip: Tensor, shift: float) -> Tensor:
    """Turns every color by `shift` circles (-0.5..0.5), keeping its value and chroma (HSV)."""
    red, green, blue = clip.unbind(1)
    high = clip.amax(1)
    chroma = high - clip.amin(1)
    # The position on the color circle in sixths, 0 = red; where gray, anything: chroma is 0.
    from_green = (blue - red).add_(chroma, alpha=2)
    from_blue = (red - green).add_(chroma, alpha=4)
    # 0 where the channel is the highest, else 1: on a CPU several times faster than comparing and `torch.where`.
    not_red, not_green = (high - red).ceil_(), (high - green).ceil_()
    sixth = torch.lerp(green - blue, torch.lerp(from_green, from_blue, not_green), not_red)
    sixth.div_(chroma.clamp(min=1e-8)).add_(6 * shift)
    # HSV back to RGB: high - chroma * clip(2 - d, 0, 1), d the way from here to the channel's dark point, mod 6.
    dark_points = torch.tensor([3.0, 1.0, -1.0], device=clip.device).view(3, 1, 1)
    d = sixth.unsqueeze(1) + dark_points  # (T, 3, H, W)
    d.sub_((d * (1 / 6)).round_(), alpha=6).abs_()
    torch.addcmul(high.unsqueeze(1), chroma.unsqueeze(1), (2 - d).clamp_(0, 1), value=-1, out=clip)
    return clip


def jitter_(clip: Tensor, params: ColorJitterParams) -> Tensor:
    """The four operations in the drawn order."""
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
    """All three channels become the luma (channel -1) or one of the channels."""
    return clip.copy_((luma(clip) if channel < 0 else clip[:, channel : channel + 1].clone()).expand_as(clip))


# Gaussian blur of whole clips.

# T frames, C channels, H W pixels


def gaussian_weights(sigma: float, limit: int) -> list[float]:
    """The weights of a pixel and of its neighbors at distance 1, 2, ...; they cover three sigmas, at most `limit`."""
    radius = max(1, min(math.ceil(3 * sigma), limit))
    weights = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(radius + 1)]
    total = weights[0] + 2 * sum(weights[1:])
    return [weight / total for weight in weights]


def blur_(clip: Tensor, sigma: float) -> Tensor:
    """Blurs every frame of a float (T, C, H, W) clip, mirrored at the edges; in place.

    A sum of shifted copies: for these small kernels several times faster on a CPU than a convolution of one channel.
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
