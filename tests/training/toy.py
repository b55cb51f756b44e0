"""An encoder so small that the engine around it takes the time: for tests that run many steps."""

import torch
from torch import Tensor, nn

from covid_cmsf.models import registry
from covid_cmsf.models.encoder import Encoder

NAME = "toy"


class Toy(Encoder):
    """Four convolutions with batch norm; 32 features."""

    first_conv = "trunk.0.weight"
    smallest_clip = (2, 8, 8)
    memory_format = torch.channels_last_3d

    def __init__(self, name: str, *, in_channels: int, bn_eps: float) -> None:
        layers = []
        for size, next_size in ((in_channels, 16), (16, 32), (32, 32), (32, 32)):
            layers += [nn.Conv3d(size, next_size, 3, stride=2, padding=1, bias=False)]
            layers += [nn.BatchNorm3d(next_size, eps=bn_eps), nn.ReLU(inplace=True)]
        super().__init__(nn.Sequential(*layers), name=name, in_channels=in_channels, num_features=32)

    def features(self, clip: Tensor) -> Tensor:
        return self.trunk(self.checked(clip).contiguous(memory_format=self.memory_format))


def add_toy() -> None:
    """Puts it into the zoo of this process, once."""
    if NAME not in registry.encoder_names():
        registry.register(NAME, usual_input=(8, 32, 32), summary="for tests")(Toy)


def remove_toy() -> None:
    del registry._ENTRIES[NAME]
