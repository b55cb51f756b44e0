"""S3D and S3D-G (Xie et al. 2018, "Rethinking Spatiotemporal Feature Learning", ECCV), as CoCLR builds them.

`TABLE` is the architecture, to be compared with the figure of Inception-V1 in I3D (Carreira and Zisserman 2017) or with
the paper. Layer and attribute names (`conv1`, `bn1`, `branch0`, `gating_b0`, ...) are the state-dict keys of CoCLR's
checkpoints.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covid_cmsf.models.checkpoints.metadata import Size
from covid_cmsf.models.conv import SpatialConv, TemporalConv
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.registry import register_encoder


@dataclass(frozen=True)
class Sep:
    """Separable convolution: (1, k, k), then (k, 1, 1); both with stride s."""

    width: int
    k: int
    s: int = 1


@dataclass(frozen=True)
class Point:
    """1x1x1 convolution."""

    width: int


@dataclass(frozen=True)
class Pool:
    """Max pooling: kernel, stride, padding over (T, H, W)."""

    kernel: Size
    stride: Size
    padding: Size


@dataclass(frozen=True)
class Mixed:
    """Inception block: 1x1x1 | 1x1x1 -> separable 3 | 1x1x1 -> separable 3 | max pool -> 1x1x1."""

    b0: int
    b1: tuple[int, int]
    b2: tuple[int, int]
    b3: int


Layer = Sep | Point | Pool | Mixed

TABLE: dict[str, Layer] = {  # output for a clip of 32x128x128
    "Conv_1a": Sep(64, k=7, s=2),  # 16x64x64
    "MaxPool_2a": Pool((1, 3, 3), (1, 2, 2), (0, 1, 1)),  # 16x32x32
    "Conv_2b": Point(64),
    "Conv_2c": Sep(192, k=3),
    "MaxPool_3a": Pool((1, 3, 3), (1, 2, 2), (0, 1, 1)),  # 16x16x16
    "Mixed_3b": Mixed(64, (96, 128), (16, 32), 32),
    "Mixed_3c": Mixed(128, (128, 192), (32, 96), 64),
    "MaxPool_4a": Pool((3, 3, 3), (2, 2, 2), (1, 1, 1)),  # 8x8x8
    "Mixed_4b": Mixed(192, (96, 208), (16, 48), 64),
    "Mixed_4c": Mixed(160, (112, 224), (24, 64), 64),
    "Mixed_4d": Mixed(128, (128, 256), (24, 64), 64),
    "Mixed_4e": Mixed(112, (144, 288), (32, 64), 64),
    "Mixed_4f": Mixed(256, (160, 320), (32, 128), 128),
    "MaxPool_5a": Pool((2, 2, 2), (2, 2, 2), (0, 0, 0)),  # 4x4x4
    "Mixed_5b": Mixed(256, (160, 320), (32, 128), 128),
    "Mixed_5c": Mixed(384, (192, 384), (48, 128), 128),
}


class S3D(Encoder):
    """Network of the layers in `TABLE`, with all widths divided by `width_divisor`."""

    first_conv = "trunk.Conv_1a.conv1.weight"
    min_input_size = (5, 17, 17)  # MaxPool_5a has no padding and needs 2x2x2, after strides of 4, 16 and 16
    memory_format = torch.channels_last_3d

    def __init__(
        self, name: str, *, in_channels: int, bn_eps: float, gated: bool = False, width_divisor: int = 1
    ) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels = in_channels
        for layer_name, layer in TABLE.items():
            layers[layer_name], channels = _build(layer, channels, width_divisor, gated)
        super().__init__(nn.Sequential(layers), name=name, in_channels=in_channels, num_features=channels)
        _initialize_(self, bn_eps)

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return the feature map (B, num_features, t, h, w), channels-last, for clips (B, C, T, H, W)."""
        return self.run_trunk(self.check_clip(clip).contiguous(memory_format=self.memory_format))


def _build(layer: Layer, channels: int, width_divisor: int, gated: bool) -> tuple[nn.Module, int]:
    """Return the module of one layer of `TABLE`, and its number of output channels."""
    match layer:
        case Sep(width, k, s):
            return SeparableConv(channels, width // width_divisor, kernel=k, stride=s), width // width_divisor
        case Point(width):
            return PointwiseConv(channels, width // width_divisor), width // width_divisor
        case Pool(kernel, stride, padding):
            return nn.MaxPool3d(kernel, stride, padding), channels
        case Mixed(b0, b1, b2, b3):
            widths = [width // width_divisor for width in (b0, *b1, *b2, b3)]
            block = InceptionBlock(channels, widths, gated=gated)
            return block, block.out_channels


def _initialize_(network: nn.Module, bn_eps: float) -> None:
    """Initialize convolutions with standard deviation 0.01, as in CoCLR, and set the epsilon of the batch norms."""
    for module in network.modules():
        if isinstance(module, nn.Conv3d):
            nn.init.normal_(module.weight, std=0.01)
        elif isinstance(module, nn.BatchNorm3d):
            module.eps = bn_eps


@register_encoder(
    "s3d", default_input_size=(32, 128, 128), summary="S3D, the backbone of CoCLR and of the paper's video runs"
)
def s3d(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps)


@register_encoder("s3dg", default_input_size=(32, 128, 128), summary="S3D with self-gating after every branch")
def s3dg(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps, gated=True)


@register_encoder(
    "s3d_half", default_input_size=(16, 112, 112), summary="S3D at half the width, for one GPU or a patient CPU"
)
def s3d_half(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps, width_divisor=2)


@register_encoder(
    "s3d_tiny", default_input_size=(8, 64, 64), summary="S3D at a quarter of the width, for laptops and tests"
)
def s3d_tiny(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps, width_divisor=4)


class PointwiseConv(nn.Module):
    """1x1x1 convolution, batch norm, ReLU."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv3d(channels, width, kernel_size=1, bias=False)
        self.bn = nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, T, H, W)."""
        x = self.bn(self.conv(x))
        return x.relu_()


class SeparableConv(nn.Module):
    """Convolution over space (1, k, k), then over time (k, 1, 1), each with batch norm and ReLU."""

    def __init__(self, channels: int, width: int, *, kernel: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = SpatialConv(channels, width, kernel=kernel, stride=stride)
        self.bn1 = nn.BatchNorm3d(width)
        self.conv2 = TemporalConv(width, width, kernel=kernel, stride=stride)
        self.bn2 = nn.BatchNorm3d(width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, ceil(T/s), ceil(H/s), ceil(W/s))."""
        x = self.bn1(self.conv1(x)).relu_()
        x = self.bn2(self.conv2(x))
        return x.relu_()


class SelfGating(nn.Module):
    """Scale each channel by a gate computed from the mean over time and space (the G of S3D-G)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.fc = nn.Linear(channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, T, H, W) -> (B, C, T, H, W)."""
        gate: Tensor = self.fc(x.mean(dim=(2, 3, 4))).sigmoid()  # (B, C)
        return x * gate[:, :, None, None, None]


class InceptionBlock(nn.Module):
    """Four parallel branches, concatenated over channels; `widths` are (b0, b1a, b1b, b2a, b2b, b3)."""

    def __init__(self, channels: int, widths: list[int], *, gated: bool) -> None:
        super().__init__()
        b0, b1a, b1b, b2a, b2b, b3 = widths
        self.branch0 = nn.Sequential(PointwiseConv(channels, b0))
        self.branch1 = nn.Sequential(PointwiseConv(channels, b1a), SeparableConv(b1a, b1b, kernel=3))
        self.branch2 = nn.Sequential(PointwiseConv(channels, b2a), SeparableConv(b2a, b2b, kernel=3))
        self.branch3 = nn.Sequential(nn.MaxPool3d(3, stride=1, padding=1), PointwiseConv(channels, b3))
        self.out_channels = b0 + b1b + b2b + b3
        self.gated = gated
        if gated:
            for i, width in enumerate((b0, b1b, b2b, b3)):
                self.add_module(f"gating_b{i}", SelfGating(width))

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, out_channels, T, H, W)."""
        outs = [self.branch0(x), self.branch1(x), self.branch2(x), self.branch3(x)]
        if self.gated:
            outs = [self.get_submodule(f"gating_b{i}")(out) for i, out in enumerate(outs)]
        return torch.cat(outs, dim=1)
