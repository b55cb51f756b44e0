"""Baselines without a network: what a histogram of colors or of motions knows about a clip.

They take the views that encoders take (colors from 0 to 1, flow in pixels a frame) and give a feature. A method
that does not beat them has learned nothing about actions.
"""

# B batch, C channels, T frames, H W pixels

import math

import torch
from torch import Tensor, nn


class ColorHistogram(nn.Module):
    """The joint histogram of red, green and blue over a clip; the square root makes dot products Hellinger's."""

    def __init__(self, num_bins: int = 8) -> None:
        super().__init__()
        self.num_bins, self.num_features = num_bins, num_bins**3

    def forward(self, clip: Tensor) -> Tensor:
        """(B, 3, T, H, W) from 0 to 1 -> (B, num_bins ** 3)."""
        bins = (clip * self.num_bins).long().clamp_(0, self.num_bins - 1)
        red, green, blue = bins.flatten(2).unbind(1)  # (B, pixels)
        joint = (red * self.num_bins + green) * self.num_bins + blue
        return _counts(joint, torch.ones_like(joint, dtype=torch.float32), self.num_features).sqrt()


class FlowHistogram(nn.Module):
    """Histograms of optical flow (Laptev et al. 2008): directions weighted by magnitude, and a bin for what is still.

    One histogram in each cell of a grid over the picture; the square root as for colors.
    """

    def __init__(self, num_directions: int = 8, grid: int = 3, still: float = 0.4) -> None:
        super().__init__()
        self.num_directions, self.grid, self.still = num_directions, grid, still
        self.num_features = grid * grid * (num_directions + 1)

    def forward(self, clip: Tensor) -> Tensor:
        """(B, 2, T, H, W) in pixels, x first -> (B, grid * grid * (num_directions + 1))."""
        x, y = clip.unbind(1)  # (B, T, H, W)
        magnitude = torch.hypot(x, y)
        turn = (torch.atan2(y, x) / (2 * math.pi)) % 1
        direction = (turn * self.num_directions).round().long() % self.num_directions
        moving = magnitude > self.still
        bins = torch.where(moving, direction, self.num_directions)
        weights = torch.where(moving, magnitude, self.still)
        per_cell = self.num_directions + 1
        bins = bins + per_cell * self._cells(clip.shape[-2], clip.shape[-1]).to(clip.device)
        return _counts(bins.flatten(1), weights.flatten(1), self.num_features).sqrt()

    def _cells(self, height: int, width: int) -> Tensor:
        """(H, W): the number of the grid cell that each pixel is in."""
        rows, columns = (torch.arange(length) * self.grid // length for length in (height, width))
        return rows[:, None] * self.grid + columns


def _counts(bins: Tensor, weights: Tensor, num_bins: int) -> Tensor:
    """(B, pixels) bins and weights -> (B, num_bins), as shares of the whole weight."""
    sums = torch.zeros(len(bins), num_bins, dtype=torch.float64, device=bins.device)
    sums.scatter_add_(1, bins, weights.double())
    return (sums / sums.sum(1, keepdim=True)).float()
