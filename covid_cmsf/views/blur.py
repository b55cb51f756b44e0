"""Gaussian blur of whole clips."""

# T frames, C channels, H W pixels

import math

import torch
import torch.nn.functional as F
from torch import Tensor


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
