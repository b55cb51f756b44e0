"""Color operations on whole clips: float (T, 3, H, W) in 0..1, on any device; torchvision's definitions.

All of them work in place on their argument and return it: a view passes through several, and memory traffic is what
they cost.
"""

# T frames, H W pixels

import torch
from torch import Tensor

from covid_cmsf.views.draws import Color

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


def jitter_(clip: Tensor, color: Color) -> Tensor:
    """The four operations in the drawn order."""
    for operation in color.order:
        if operation == 0:
            brightness_(clip, color.brightness)
        elif operation == 1:
            contrast_(clip, color.contrast)
        elif operation == 2:
            saturation_(clip, color.saturation)
        else:
            hue_(clip, color.hue)
    return clip


def gray_(clip: Tensor, channel: int) -> Tensor:
    """All three channels become the luma (channel -1) or one of the channels."""
    return clip.copy_((luma(clip) if channel < 0 else clip[:, channel : channel + 1].clone()).expand_as(clip))
