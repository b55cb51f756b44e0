"""Colour operations on whole clips: float (T, 3, H, W) in 0..1, on any device; torchvision's definitions.

All of them work in place on their argument and return it: a view passes through several, and memory traffic is what
they cost.
"""

# T frames, H W pixels

import torch
from torch import Tensor

from covid_cmsf.views.draws import Colour

LUMA = (0.2989, 0.587, 0.114)


def luma(clip: Tensor) -> Tensor:
    """(T, 3, H, W) -> (T, 1, H, W), the weights of ITU-R 601."""
    red, green, blue = clip.unbind(1)
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2]).unsqueeze(1)


def brightness_(clip: Tensor, factor: float) -> Tensor:
    """Towards black (factor 0) or beyond the picture (above 1)."""
    return clip.mul_(factor).clamp_(0, 1)


def contrast_(clip: Tensor, factor: float) -> Tensor:
    """Towards each frame's mean luma."""
    mean = luma(clip).mean(dim=(1, 2, 3), keepdim=True)  # (T, 1, 1, 1)
    return clip.mul_(factor).add_(mean, alpha=1 - factor).clamp_(0, 1)


def saturation_(clip: Tensor, factor: float) -> Tensor:
    """Towards grey."""
    grey = luma(clip)
    return clip.mul_(factor).add_(grey, alpha=1 - factor).clamp_(0, 1)


def hue_(clip: Tensor, shift: float) -> Tensor:
    """Turns every colour by `shift` circles (-0.5..0.5), keeping its value and chroma (HSV)."""
    red, green, blue = clip.unbind(1)
    high, low = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    chroma = high - low
    inverse = chroma.clamp(min=1e-8).reciprocal_()
    # The position on the colour circle in sixths, 0 = red; where grey, anything: chroma is 0.
    from_red = (green - blue).mul_(inverse)
    from_green = (blue - red).mul_(inverse).add_(2)
    from_blue = (red - green).mul_(inverse).add_(4)
    sixth = torch.where(high == red, from_red, torch.where(high == green, from_green, from_blue)).add_(6 * shift)
    for channel, offset in enumerate((3, 1, -1)):
        # HSV back to RGB: high - chroma * clip(2 - d, 0, 1), d the way from here to the channel's dark point, mod 6.
        d = sixth + offset
        d.sub_((d * (1 / 6)).round_(), alpha=6).abs_()
        torch.sub(high, d.neg_().add_(2).clamp_(0, 1).mul_(chroma), out=clip[:, channel])
    return clip


def jitter_(clip: Tensor, colour: Colour) -> Tensor:
    """The four operations in the drawn order."""
    for operation in colour.order:
        if operation == 0:
            brightness_(clip, colour.brightness)
        elif operation == 1:
            contrast_(clip, colour.contrast)
        elif operation == 2:
            saturation_(clip, colour.saturation)
        else:
            hue_(clip, colour.hue)
    return clip


def grey_(clip: Tensor, channel: int) -> Tensor:
    """All three channels become the luma (channel -1) or one of the channels."""
    return clip.copy_((luma(clip) if channel < 0 else clip[:, channel : channel + 1].clone()).expand_as(clip))
