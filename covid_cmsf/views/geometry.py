"""Cutting views out of clips: crop, resize, mirror."""

# T frames, C channels, H W pixels

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.views.draws import Geometry


def cut(clip: Tensor, geometry: Geometry, size: int) -> Tensor:
    """(T, C, H, W) uint8 or float -> (T, C, size, size) of the same type: crop and antialiased bilinear resize.

    Values are kept: flow stays in pixels of the stored frame, whatever the resize. Mirroring is `mirror`'s work.
    """
    height, width = clip.shape[-2:]
    top, left = round(geometry.top * height), round(geometry.left * width)
    bottom = min(height, top + max(1, round(geometry.height * height)))
    right = min(width, left + max(1, round(geometry.width * width)))
    part = clip[..., top:bottom, left:right]
    if part.shape[-2:] == (size, size):
        return part
    if clip.dtype == torch.uint8 and clip.device.type != "cpu":  # only the CPU has the integer kernel
        resized = F.interpolate(part.float(), (size, size), mode="bilinear", antialias=True)
        return resized.round_().clamp_(0, 255).to(torch.uint8)
    return F.interpolate(part, (size, size), mode="bilinear", antialias=True)


def mirror(clip: Tensor) -> Tensor:
    """Left becomes right. For flow the sign of x must change as well: see `modalities`."""
    return clip.flip(-1)
