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


def adapt_channels(weight: Tensor, in_channels: int, how: str) -> Tensor:
    """The first convolution's weight (out, old, ...) as (out, in_channels, ...)."""
    old = weight.shape[1]
    if how == MEAN:
        return weight.mean(dim=1, keepdim=True).repeat_interleave(in_channels, dim=1) * (old / in_channels)
    picks = parse_picks(how, old)
    if len(picks) != in_channels:
        raise ValueError(f"{how!r} picks {len(picks)} channels for {in_channels} input channels")
    zero = torch.zeros_like(weight[:, 0])
    return torch.stack([zero if pick is None else weight[:, pick] for pick in picks], dim=1)


def adapt_values(values: Sequence[float], in_channels: int, how: str, *, empty: float) -> tuple[float, ...]:
    """The same surgery on one number a channel (mean or std of the pixels); `empty` for a zero channel."""
    if how == MEAN:
        return (sum(values) / len(values),) * in_channels
    return tuple(empty if pick is None else values[pick] for pick in parse_picks(how, len(values)))


def parse_picks(how: str, old: int) -> list[int | None]:
    """`"zero,1,0"` -> [None, 1, 0]; ValueError with what would be accepted."""
    picks: list[int | None] = []
    for word in how.split(","):
        if word.strip() == ZERO:
            picks.append(None)
        elif word.strip().isdigit() and int(word) < old:
            picks.append(int(word))
        else:
            raise ValueError(
                f"channel surgery {how!r}: {word.strip()!r} is not one of the file's channels 0 to {old - 1}; "
                f"write {MEAN!r}, or a comma-separated list of channel numbers and {ZERO!r}"
            )
    return picks
