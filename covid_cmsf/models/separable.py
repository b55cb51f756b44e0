"""The blocks of S3D (Xie et al. 2018). All of them keep T, H and W unless they have a stride.

Attribute names (`conv1`, `bn1`, `branch0`, `gating_b0`, ...) are the state-dict keys of CoCLR's files.
"""

import torch
from torch import Tensor, nn

from covid_cmsf.models.spatial_conv import SpatialConv
from covid_cmsf.models.temporal_conv import TemporalConv


class Pointwise(nn.Module):
    """1x1x1 convolution, batch norm, ReLU."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, width, kernel_size=1, bias=False)
        self.bn = nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, T, H, W)."""
        return self.bn(self.conv(x)).relu_()


class Separable(nn.Module):
    """A k x k x k convolution in two: over space (1, k, k), then over time (k, 1, 1), each with norm and ReLU."""

    def __init__(self, channels: int, width: int, *, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = SpatialConv(channels, width, kernel=kernel, stride=stride)
        self.bn1 = nn.BatchNorm3d(width)
        self.conv2 = TemporalConv(width, width, kernel=kernel, stride=stride)
        self.bn2 = nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, ceil(T/s), ceil(H/s), ceil(W/s))."""
        x = self.bn1(self.conv1(x)).relu_()
        return self.bn2(self.conv2(x)).relu_()


class SelfGating(nn.Module):
    """Each channel is scaled by how much the clip as a whole calls for it (the G of S3D-G)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) -> the same shape."""
        gate = self.fc(x.mean(dim=(2, 3, 4))).sigmoid()  # (B, C)
        return x * gate[:, :, None, None, None]


class Inception(nn.Module):
    """Four branches side by side, joined on the channels; `widths` are (b0, b1a, b1b, b2a, b2b, b3)."""

    def __init__(self, channels: int, widths: list[int], *, gated: bool) -> None:
        super().__init__()
        b0, b1a, b1b, b2a, b2b, b3 = widths
        self.branch0 = nn.Sequential(Pointwise(channels, b0))
        self.branch1 = nn.Sequential(Pointwise(channels, b1a), Separable(b1a, b1b, kernel=3))
        self.branch2 = nn.Sequential(Pointwise(channels, b2a), Separable(b2a, b2b, kernel=3))
        self.branch3 = nn.Sequential(nn.MaxPool3d(3, stride=1, padding=1), Pointwise(channels, b3))
        self.num_out = b0 + b1b + b2b + b3
        self.gated = gated
        if gated:
            for i, width in enumerate((b0, b1b, b2b, b3)):
                self.add_module(f"gating_b{i}", SelfGating(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, num_out, T, H, W)."""
        outs = [self.branch0(x), self.branch1(x), self.branch2(x), self.branch3(x)]
        if self.gated:
            outs = [self.get_submodule(f"gating_b{i}")(out) for i, out in enumerate(outs)]
        return torch.cat(outs, dim=1)
