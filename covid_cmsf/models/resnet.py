"""ResNets (He et al. 2016) on torchvision's layers, for images and for single frames of clips.

As in torchvision and in the official CMSF code, the stride is in the 3x3 convolution (v1.5), and convolutions are
initialized with `kaiming_normal_`. State-dict keys are torchvision's, without `fc`.

torchvision is imported where a network is built: it takes longer to import than PyTorch (it imports torch._dynamo), and
most commands build no ResNet.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor, nn

from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.registry import register_encoder

if TYPE_CHECKING:
    from torchvision.models.resnet import ResNet

SMALL_WIDTH = 16  # channels of the first stage of r10_small; a full ResNet has 64
LAYERS = ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3", "layer4")


class ResNetEncoder(Encoder):
    """2D network, applied to each frame of a clip."""

    first_conv = "trunk.conv1.weight"
    min_input_size = (1, 1, 1)
    memory_format = torch.channels_last

    def __init__(self, net: "ResNet", name: str, *, in_channels: int, bn_eps: float) -> None:
        layers = OrderedDict((layer, getattr(net, layer)) for layer in LAYERS)
        for module in net.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = bn_eps
        num_features = net.fc.in_features
        super().__init__(nn.Sequential(layers), name=name, in_channels=in_channels, num_features=num_features)

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return the feature map (B, num_features, T, h, w) for clips (B, C, T, H, W); an image has T = 1."""
        clip = self.check_clip(clip)
        frames = rearrange(clip, "b c t h w -> (b t) c h w").contiguous(memory_format=self.memory_format)
        return rearrange(self.run_trunk(frames), "(b t) c h w -> b c t h w", b=clip.shape[0])


def _first_conv(width: int, in_channels: int, *, kernel: int, stride: int) -> nn.Conv2d:
    conv = nn.Conv2d(in_channels, width, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


@register_encoder("r18", default_input_size=(1, 224, 224), summary="ResNet-18")
def r18(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    from torchvision.models.resnet import BasicBlock, ResNet

    net = ResNet(BasicBlock, [2, 2, 2, 2])
    net.conv1 = _first_conv(64, in_channels, kernel=7, stride=2)
    return ResNetEncoder(net, name, in_channels=in_channels, bn_eps=bn_eps)


@register_encoder("r50", default_input_size=(1, 224, 224), summary="ResNet-50, the image backbone of the paper")
def r50(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    from torchvision.models.resnet import Bottleneck, ResNet

    net = ResNet(Bottleneck, [3, 4, 6, 3])
    net.conv1 = _first_conv(64, in_channels, kernel=7, stride=2)
    return ResNetEncoder(net, name, in_channels=in_channels, bn_eps=bn_eps)


@register_encoder(
    "r18_cifar", default_input_size=(1, 32, 32), summary="ResNet-18 for small images: 3x3 start, no stride, no pool"
)
def r18_cifar(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    from torchvision.models.resnet import BasicBlock, ResNet

    net = ResNet(BasicBlock, [2, 2, 2, 2])
    net.conv1 = _first_conv(64, in_channels, kernel=3, stride=1)
    net.maxpool = nn.Identity()
    return ResNetEncoder(net, name, in_channels=in_channels, bn_eps=bn_eps)


@register_encoder("r10_small", default_input_size=(1, 32, 32), summary="ResNet-10, a quarter as wide, for small images")
def r10_small(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    from torchvision.models.resnet import BasicBlock, ResNet

    net = ResNet(BasicBlock, [1, 1, 1, 1])
    net.conv1, net.maxpool = _first_conv(SMALL_WIDTH, in_channels, kernel=3, stride=1), nn.Identity()
    net.bn1, net.inplanes = nn.BatchNorm2d(SMALL_WIDTH), SMALL_WIDTH
    for number in range(4):
        layer = net._make_layer(BasicBlock, SMALL_WIDTH * 2**number, 1, stride=1 if number == 0 else 2)
        for module in layer.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        setattr(net, f"layer{number + 1}", layer)
    net.fc = nn.Linear(8 * SMALL_WIDTH, 1)
    return ResNetEncoder(net, name, in_channels=in_channels, bn_eps=bn_eps)
