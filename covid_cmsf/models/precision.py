"""Mixed precision and torch.compile.

with autocast("bf16", device):
    feature = compile_(encoder)(clip)
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal, TypeVar, get_args

import torch
from torch import nn

Precision = Literal["fp32", "bf16", "fp16"]
BF16_CAPABILITY = 8  # compute capability from which GPUs have bf16: A100 and later
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def resolve_precision(precision: str, device: torch.device) -> str:
    """Return the precision; `auto` is bf16 on GPUs that have it, else fp32."""
    if precision != "auto":
        return precision
    has_bf16 = device.type == "cuda" and torch.cuda.get_device_properties(device).major >= BF16_CAPABILITY
    return "bf16" if has_bf16 else "fp32"


@contextmanager
def fixed_shapes(device: torch.device) -> Iterator[None]:
    """Let cuDNN measure its kernels at the first batch, on a GPU: worth it where all batches have one shape."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or device.type == "cuda"
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


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
