"""Mixed precision and torch.compile.

with autocast("bf16", device):
    feature = compile_(encoder)(clip)
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal, TypeVar, get_args

import torch
from torch import nn

Precision = Literal["fp32", "bf16", "fp16"]
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def autocast(precision: str, device: torch.device | str) -> AbstractContextManager[object]:
    """Return a context in which convolutions and matrix products run in `precision`; weights stay in fp32.

    Training in fp16 needs a gradient scaler as well; bf16 does not.
    """
    if precision not in get_args(Precision):
        raise ValueError(f"unknown precision {precision!r}; choose from {', '.join(get_args(Precision))}")
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(torch.device(device).type, dtype=DTYPES[precision])


M = TypeVar("M", bound=nn.Module)


def compile_(module: M) -> M:
    """Compile the module in place, at its first call. Its state-dict keys do not change."""
    module.compile()
    return module
