"""Count the parameters of an encoder, and its GFLOPs for one clip.

One multiply-accumulate counts as one operation, as in vision papers and torchvision's tables. Only convolutions and
linear layers are counted. Everything runs on the meta device, so this is fast for any input size.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from covid_cmsf.models.checkpoints.metadata import Size
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.registry import create_model


@dataclass(frozen=True)
class LayerProfile:
    """Cost of one layer of the trunk; `output` is its output shape (C, T, H, W) or (C, H, W)."""

    name: str
    num_parameters: int
    gflops: float
    output: tuple[int, ...]


@dataclass(frozen=True)
class EncoderProfile:
    """Cost of one encoder at one input size; `feature_map` is (t, h, w)."""

    num_parameters: int
    gflops: float
    num_features: int
    feature_map: Size
    layers: tuple[LayerProfile, ...]


def count_parameters(module: nn.Module) -> int:
    """Return the number of parameters, trainable or not; shared ones count once."""
    return sum(parameter.numel() for parameter in module.parameters())


def profile_encoder(name: str, size: Size, *, in_channels: int = 3) -> EncoderProfile:
    """Return the cost of the encoder `name` for one clip of `size` (T, H, W)."""
    outputs: dict[str, tuple[int, ...]] = {}
    with torch.device("meta"):
        encoder: Encoder = create_model(name, in_channels=in_channels).eval()
        clip = torch.empty(1, in_channels, *size)
    for layer_name, layer in encoder.trunk.named_children():
        layer.register_forward_hook(partial(_record_output, outputs, layer_name))
    with FlopCounterMode(display=False, depth=3) as counter, torch.no_grad():
        encoder(clip)
    frames, height, width = encoder.forward_features(clip).shape[2:]
    counts = counter.get_flop_counts()
    layers = [
        LayerProfile(layer, count_parameters(module), _gflops(counts, f"{type(encoder).__name__}.trunk.{layer}"), shape)
        for (layer, module), shape in zip(encoder.trunk.named_children(), outputs.values(), strict=True)
    ]
    return EncoderProfile(
        num_parameters=count_parameters(encoder),
        gflops=_gflops(counts, "Global"),
        num_features=encoder.num_features,
        feature_map=(frames, height, width),
        layers=tuple(layers),
    )


def _record_output(outputs: dict[str, tuple[int, ...]], name: str, _: nn.Module, __: object, output: Tensor) -> None:
    outputs[name] = tuple(output.shape[1:])


def _gflops(counts: Mapping[str, Mapping[object, int]], module: str) -> float:
    return sum(counts.get(module, {}).values()) / 2e9  # the counter counts a multiply-accumulate as two
