"""S3D and S3D-G (Xie et al. 2018, "Rethinking Spatiotemporal Feature Learning", ECCV), as CoCLR builds them.

`TABLE` is the network: lay it beside figure 1 of I3D or the table of the paper. The names of layers and weights
are those of CoCLR's checkpoints.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covid_cmsf.models.encoder import Encoder, Size
from covid_cmsf.models.registry import register
from covid_cmsf.models.separable import Inception, Pointwise, Separable


@dataclass(frozen=True)
class Sep:
    """(1, k, k) convolution, then (k, 1, 1); both with stride s."""

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
    """The table as a network; `divide` makes every layer that many times narrower."""

    first_conv = "trunk.Conv_1a.conv1.weight"
    smallest_clip = (5, 17, 17)  # MaxPool_5a has no padding and needs 2x2x2, after strides of 4, 16 and 16
    memory_format = torch.channels_last_3d

    def __init__(self, name: str, *, in_channels: int, bn_eps: float, gated: bool = False, divide: int = 1) -> None:
        layers: OrderedDict[str, nn.Module] = OrderedDict()
        channels = in_channels
        for layer_name, layer in TABLE.items():
            layers[layer_name], channels = _build(layer, channels, divide, gated)
        super().__init__(nn.Sequential(layers), name=name, in_channels=in_channels, num_features=channels)
        _initialize_(self, bn_eps)

    def features(self, clip: Tensor) -> Tensor:
        """(B, C, T, H, W) -> (B, num_features, t, h, w), channels-last."""
        return self.trunk(self.checked(clip).contiguous(memory_format=self.memory_format))


def _build(layer: Layer, channels: int, divide: int, gated: bool) -> tuple[nn.Module, int]:
    """The module of one line of the table, and how many channels leave it."""
    match layer:
        case Sep(width, k, s):
            return Separable(channels, width // divide, kernel=k, stride=s), width // divide
        case Point(width):
            return Pointwise(channels, width // divide), width // divide
        case Pool(kernel, stride, padding):
            return nn.MaxPool3d(kernel, stride, padding), channels
        case Mixed(b0, b1, b2, b3):
            widths = [width // divide for width in (b0, *b1, *b2, b3)]
            block = Inception(channels, widths, gated=gated)
            return block, block.num_out


def _initialize_(network: nn.Module, bn_eps: float) -> None:
    """Convolutions from N(0, 0.01) as in CoCLR; batch norms start as the identity."""
    for module in network.modules():
        if isinstance(module, nn.Conv3d):
            nn.init.normal_(module.weight, std=0.01)
        elif isinstance(module, nn.BatchNorm3d):
            module.eps = bn_eps


@register("s3d", usual_input=(32, 128, 128), summary="S3D, the backbone of CoCLR and of the paper's video runs")
def s3d(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps)


@register("s3dg", usual_input=(32, 128, 128), summary="S3D with self-gating after every branch")
def s3dg(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps, gated=True)


@register("s3d_half", usual_input=(16, 112, 112), summary="S3D at half the width, for one GPU or a patient CPU")
def s3d_half(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps, divide=2)


@register("s3d_tiny", usual_input=(8, 64, 64), summary="S3D at a quarter of the width, for laptops and tests")
def s3d_tiny(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return S3D(name, in_channels=in_channels, bn_eps=bn_eps, divide=4)
