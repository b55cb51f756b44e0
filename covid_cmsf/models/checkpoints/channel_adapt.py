"""Adapt the first convolution to another number of input channels, for example from 3 to 2. Never done by default.

"mean"         each new channel gets the mean of the old ones (Wang et al. 2016, TSN), scaled by old / new,
               so that an input with equal channels gives the same output
"2,1"          the new channels are the old channels 2 and 1: CoCLR's flow (128, y, x) -> (x, y)
"zero,1,0"     zero weights for a constant channel: (x, y) -> CoCLR's (128, y, x)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MEAN, ZERO = "mean", "zero"


def adapt_channels(weight: Tensor, in_channels: int, spec: str) -> Tensor:
    """Return the weight (out, in_channels, ...) of the first convolution, given (out, old, ...)."""
    old = weight.shape[1]
    if spec == MEAN:
        return weight.mean(dim=1, keepdim=True).repeat_interleave(in_channels, dim=1) * (old / in_channels)
    channels = parse_channel_indices(spec, old)
    if len(channels) != in_channels:
        raise ValueError(f"channel adaptation {spec!r} selects {len(channels)} channels, but {in_channels} are needed")
    zero = torch.zeros_like(weight[:, 0])
    return torch.stack([zero if channel is None else weight[:, channel] for channel in channels], dim=1)


def adapt_channel_values(values: Sequence[float], in_channels: int, spec: str, *, empty: float) -> tuple[float, ...]:
    """Adapt per-channel values (mean or std of the pixels) in the same way; a zero channel gets `empty`."""
    if spec == MEAN:
        return (sum(values) / len(values),) * in_channels
    return tuple(empty if channel is None else values[channel] for channel in parse_channel_indices(spec, len(values)))


def parse_channel_indices(spec: str, old: int) -> list[int | None]:
    """Parse `"zero,1,0"` into [None, 1, 0]; raise ValueError if an index is not below `old`."""
    channels: list[int | None] = []
    for item in map(str.strip, spec.split(",")):
        if item == ZERO:
            channels.append(None)
        elif item.isdigit() and int(item) < old:
            channels.append(int(item))
        else:
            raise ValueError(
                f"channel adaptation {spec!r}: {item!r} is not one of the file's channels 0 to {old - 1}; "
                f"use {MEAN!r}, or a comma-separated list of channel indices and {ZERO!r}"
            )
    return channels
