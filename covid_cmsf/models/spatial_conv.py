"""The (1, k, k) convolution of S3D, run as a 2D convolution over single frames.

In channels-last layout both are the same bytes, so this costs nothing, and the library's 2D gradients are quicker.
"""

from einops import rearrange
from torch import Tensor, nn


class SpatialConv(nn.Conv3d):
    """Convolution over space alone: kernel (1, k, k), no bias; pads k // 2 pixels on all sides."""

    def __init__(self, channels: int, width: int, *, kernel: int, stride: int) -> None:
        pad = kernel // 2
        super().__init__(
            channels, width, (1, kernel, kernel), stride=(1, stride, stride), padding=(0, pad, pad), bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, T, ceil(H / stride), ceil(W / stride))."""
        frames = rearrange(x, "b c t h w -> (b t) c h w")
        frames = nn.functional.conv2d(frames, self.weight.squeeze(2), stride=self.stride[1:], padding=self.padding[1:])
        return rearrange(frames, "(b t) c h w -> b c t h w", t=x.shape[2])
