"""Augmentation operations on whole batches (B, T, C, H, W) with other parameters per clip, for GPUs.

The number of kernel launches does not depend on the batch size, and nothing waits for the device. Operations and
definitions are those of `ops`, one clip at a time, to which the tests compare them.
Shapes: B batch, T frames, C channels, H x W pixels, S size of a view.
"""

import torch
from torch import Tensor

from covid_cmsf.views.ops import LUMA

CHUNK_BYTES = 1_000_000_000  # of float frames that are resized at once


def axis_span(first: int, count: int, *, flip: bool, size: int) -> tuple[float, ...]:
    """Return the numbers of `resize_weights` for a crop of `count` pixels from `first` on, resized to `size`."""
    step = count / size  # pixels of the frame per pixel of the view
    origin, direction = (first + count, -step) if flip else (first, step)
    return origin, direction, first, first + count, -1 / max(step, 1.0)


def resize_weights(spans: Tensor, length: int, size: int) -> Tensor:
    """Return the weights (N, length, size) that crop, flip and resize one axis (bilinear, antialiased).

    `spans` (N, 5) are made by `axis_span`. An axis may be padded at its end: pixels outside of the crop have weight 0.
    The weights of an output pixel sum to 1.
    """
    origin, direction, first, end, slope = (column.view(-1, 1, 1) for column in spans.unbind(1))
    outputs = torch.arange(0.5, size, device=spans.device)
    pixels = torch.arange(0.5, length, device=spans.device).view(1, -1, 1)  # centers of pixels
    centers = torch.addcmul(origin, direction, outputs)  # (N, 1, S)
    weights = (pixels - centers).abs_().mul_(slope).add_(1).clamp_(min=0)  # a triangle, as wide as an output pixel
    weights *= (pixels > first) & (pixels < end)
    return weights.div_(weights.sum(1, keepdim=True))


def crop_resize(frames: Tensor, spans: Tensor, size: int, *, value_scale: float = 1.0) -> Tensor:
    """Crop, flip and resize uint8 (B, T, C, H, W) to float (B, T, C, S, S), times `value_scale`.

    `spans` (B, 2, 5) are those of `axis_span`, of rows and columns. Two matrix products per clip.
    """
    b, t, c, h, w = frames.shape
    both = resize_weights(spans.flatten(0, 1), max(h, w), size).view(b, 2, -1, size)
    row_weights, column_weights = both[:, 0, :h] * value_scale, both[:, 1, :w]
    resized = torch.empty(b, t, c, size, size, device=frames.device)
    step = max(1, CHUNK_BYTES // (4 * t * c * h * w))
    for start in range(0, b, step):
        chunk = slice(start, start + step)
        upright = frames[chunk].transpose(3, 4).to(torch.float32, memory_format=torch.contiguous_format)
        half = torch.bmm(upright.view(-1, t * c * w, h), row_weights[chunk]).view(-1, t * c, w, size)
        half = half.transpose(2, 3).reshape(-1, t * c * size, w)
        torch.bmm(half, column_weights[chunk], out=resized[chunk].view(-1, t * c * size, size))
    return resized


def blend_(clips: Tensor, factor: Tensor, luma_share: Tensor, mean_share: Tensor) -> Tensor:
    """Scale brightness, contrast or saturation by `factor` (B,), whichever each clip draws, in place.

    All three blend with a gray image: black, the mean luma of the frame (`mean_share` 1) or the luma (`luma_share` 1).
    """
    factor, luma_share, mean_share = (values.view(-1, 1, 1, 1, 1) for values in (factor, luma_share, mean_share))
    gray = luma(clips)
    mean = gray.mean(dim=(2, 3, 4), keepdim=True)
    base = torch.addcmul(mean * mean_share, gray, luma_share)
    torch.lerp(base, clips, factor, out=clips)
    clips.clamp_(0, 1)
    return clips


def luma(clips: Tensor) -> Tensor:
    """Return the luma (B, T, 1, H, W) of RGB (B, T, 3, H, W)."""
    red, green, blue = (channel.unsqueeze(2) for channel in clips.unbind(2))
    return (red * LUMA[0]).add_(green, alpha=LUMA[1]).add_(blue, alpha=LUMA[2])


def hue_(clips: Tensor, shift: Tensor) -> Tensor:
    """Rotate the hue by `shift` (B,) of the color circle, in place."""
    red, green, blue = clips.unbind(2)
    high = clips.amax(2)
    chroma = high - clips.amin(2)
    # Hue in sixths of the color circle, 0 = red; arbitrary for gray, where chroma is 0.
    from_green = (blue - red).add_(chroma, alpha=2)
    from_blue = (red - green).add_(chroma, alpha=4)
    sixth = torch.where(high == red, green - blue, torch.where(high == green, from_green, from_blue))
    sixth.div_(chroma.clamp(min=1e-8)).add_(6 * shift.view(-1, 1, 1, 1))
    # HSV to RGB: high - chroma * clip(2 - d, 0, 1), where d is the distance (mod 6) to the channel's darkest hue.
    dark_points = torch.arange(3, -2, -2, device=clips.device, dtype=torch.float32).view(3, 1, 1)  # 3, 1, -1
    d = sixth.unsqueeze(2) + dark_points
    d.sub_((d * (1 / 6)).round_(), alpha=6).abs_()
    torch.addcmul(high.unsqueeze(2), chroma.unsqueeze(2), (2 - d).clamp_(0, 1), value=-1, out=clips)
    return clips


def gray(clips: Tensor, channel_weights: Tensor) -> Tensor:
    """Return clips whose three channels are the sum of the channels with `channel_weights` (B, 3)."""
    weighted = (clips * channel_weights.view(-1, 1, 3, 1, 1)).sum(2, keepdim=True)
    return weighted.expand_as(clips)


def blur_weights(sigmas: Tensor, radii: Tensor, size: int) -> Tensor:
    """Return the weights (N, S, S) of a Gaussian blur of one axis with reflected borders.

    `sigmas` (N,) are its widths in pixels; it is cut off beyond `radii` (N,), which are below `size`.
    """
    sigma, radius = sigmas.view(-1, 1, 1), radii.view(-1, 1, 1)
    inputs = torch.arange(1 - size, 2 * size - 1, device=sigmas.device, dtype=torch.float32).view(-1, 1)
    outputs = torch.arange(size, device=sigmas.device, dtype=torch.float32)
    distance = (inputs - outputs).abs_()
    padded = (distance / sigma).square_().mul_(-0.5).exp_().mul_(distance <= radius)  # (N, 3S - 2, S)
    weights = padded[:, size - 1 : 2 * size - 1]
    weights[:, 1:] += padded[:, : size - 1].flip(1)
    weights[:, :-1] += padded[:, 2 * size - 1 :].flip(1)
    return weights / weights.sum(1, keepdim=True)


def blur(clips: Tensor, sigmas: Tensor, radii: Tensor) -> Tensor:
    """Blur square clips (B, T, C, S, S) with the width of each, sigmas (B,). Two matrix products per clip."""
    b, t, c, size, _ = clips.shape
    weights = blur_weights(sigmas, radii, size)
    once = torch.bmm(clips.reshape(b, t * c * size, size), weights).view(b, t * c, size, size)
    twice = torch.bmm(once.transpose(2, 3).reshape(b, t * c * size, size), weights)
    return twice.view(b, t, c, size, size).transpose(3, 4)
