"""First-convolution surgery: weights for 3 input channels serve 2, or the other way round. Only when asked for.

"mean"         every new channel gets the average of the old ones (Wang et al. 2016, TSN), scaled by old / new,
               so that a value that is the same in all channels gives the same response
"2,1"          the new channels are old channels 2 and 1: CoCLR's flow (128, y, x) -> (x, y)
"zero,1,0"     a zero for a channel that carries nothing: (x, y) -> CoCLR's (128, y, x)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

MEAN, ZERO = "mean", "zero"


def adapt_channels(weight: Tensor, in_channels: int, spec: str) -> Tensor:
    """The first convolution's weight (out, old, ...) as (out, in_channels, ...)."""
    old = weight.shape[1]
    if spec == MEAN:
        return weight.mean(dim=1, keepdim=True).repeat_interleave(in_channels, dim=1) * (old / in_channels)
    channels = parse_channel_indices(spec, old)
    if len(channels) != in_channels:
        raise ValueError(f"{spec!r} picks {len(channels)} channels for {in_channels} input channels")
    zero = torch.zeros_like(weight[:, 0])
    return torch.stack([zero if channel is None else weight[:, channel] for channel in channels], dim=1)


def adapt_channel_values(values: Sequence[float], in_channels: int, spec: str, *, empty: float) -> tuple[float, ...]:
    """The same surgery on one number a channel (mean or std of the pixels); `empty` for a zero channel."""
    if spec == MEAN:
        return (sum(values) / len(values),) * in_channels
    return tuple(empty if channel is None else values[channel] for channel in parse_channel_indices(spec, len(values)))


def parse_channel_indices(spec: str, old: int) -> list[int | None]:
    """`"zero,1,0"` -> [None, 1, 0]; ValueError with what would be accepted."""
    channels: list[int | None] = []
    for word in spec.split(","):
        if word.strip() == ZERO:
            channels.append(None)
        elif word.strip().isdigit() and int(word) < old:
            channels.append(int(word))
        else:
            raise ValueError(
                f"channel surgery {spec!r}: {word.strip()!r} is not one of the file's channels 0 to {old - 1}; "
                f"write {MEAN!r}, or a comma-separated list of channel numbers and {ZERO!r}"
            )
    return channels
