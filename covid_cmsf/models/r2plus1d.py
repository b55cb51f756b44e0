"""A short network of (2+1)D convolutions (Tran et al. 2018, "A Closer Look at Spatiotemporal Convolutions", CVPR).

For small clips and short runs. S3D has 22 layers with batch norm, no residual connections and a spatial stride of 32:
a clip of 48 pixels has a feature map of 1x1, and some hundred steps train it little. This network has four stages and a
spatial stride of 16, and trains faster.
"""

from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from covid_cmsf.models.conv import SpatialConv, TemporalConv
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.registry import register_encoder


@dataclass(frozen=True)
class Stage:
    """(1, k, k) convolution with stride 2 over space, then (3, 1, 1) with stride s over time."""

    width: int
    k: int = 3
    s: int = 1


TABLE = {  # output for a clip of 8x48x48
    "stage1": Stage(16, k=5),  # 8x24x24
    "stage2": Stage(32),  # 8x12x12
    "stage3": Stage(64, s=2),  # 4x6x6
    "stage4": Stage(128, s=2),  # 2x3x3
}


class Block(nn.Module):
    """Module of one stage; batch norm and ReLU after both convolutions."""

    def __init__(self, channels: int, stage: Stage) -> None:
        super().__init__()
        self.conv1 = SpatialConv(channels, stage.width, kernel=stage.k, stride=2)
        self.bn1 = nn.BatchNorm3d(stage.width)
        self.conv2 = TemporalConv(stage.width, stage.width, kernel=3, stride=stage.s)
        self.bn2 = nn.BatchNorm3d(stage.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, channels, T, H, W) -> (B, width, ceil(T/s), ceil(H/2), ceil(W/2))."""
        x = self.bn1(self.conv1(x)).relu_()
        x = self.bn2(self.conv2(x))
        return x.relu_()


class R2Plus1D(Encoder):
    """Network of the stages in `TABLE`."""

    first_conv = "trunk.stage1.conv1.weight"
    min_input_size = (1, 1, 1)
    memory_format = torch.channels_last_3d

    def __init__(self, name: str, *, in_channels: int, bn_eps: float) -> None:
        blocks: OrderedDict[str, nn.Module] = OrderedDict()
        channels = in_channels
        for stage_name, stage in TABLE.items():
            blocks[stage_name], channels = Block(channels, stage), stage.width
        super().__init__(nn.Sequential(blocks), name=name, in_channels=in_channels, num_features=channels)
        for module in self.modules():
            if isinstance(module, nn.BatchNorm3d):
                module.eps = bn_eps

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return the feature map (B, num_features, t, h, w), channels-last, for clips (B, C, T, H, W)."""
        return self.run_trunk(self.check_clip(clip).contiguous(memory_format=self.memory_format))


@register_encoder(
    "c21d_tiny", default_input_size=(8, 48, 48), summary="four (2+1)D stages, for small clips and short runs: the demo"
)
def c21d_tiny(name: str, *, in_channels: int, bn_eps: float) -> Encoder:
    return R2Plus1D(name, in_channels=in_channels, bn_eps=bn_eps)
