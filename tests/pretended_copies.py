"""Copies to and from the pretended GPU (`pretended_gpu`): which block, which take a kernel, and what arrives when."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class CopyCost:
    """What a copy to the GPU costs besides the copy itself."""

    blocks: bool  # Python waits for it
    launches: bool  # a kernel puts what was copied where it belongs


def pin_memory(tensor: Tensor, *args: Any) -> Tensor:
    """Copy to memory that counts as page-locked: all of it, as slices of a pinned tensor are pinned as well."""
    if is_pinned(tensor):
        return tensor
    return _mark_pinned(torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor))


def _mark_pinned(tensor: Tensor) -> Tensor:
    tensor.untyped_storage().pinned = True  # type: ignore[attr-defined]  # PyTorch keeps one such object per storage
    return tensor


def is_pinned(tensor: Tensor) -> bool:
    """Whether the memory of a CPU tensor counts as page-locked."""
    return getattr(tensor.untyped_storage(), "pinned", False)


def is_asynchronous(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operation of `COPIES` was asked not to wait."""
    return bool(
        kwargs.get("non_blocking", False) or (func is torch.ops.aten.copy_.default and len(args) > 2 and args[2])
    )


def cost_to_gpu(source: Tensor, destination: Tensor | None, options: dict[str, Any], *, asynchronous: bool) -> CopyCost:
    """Return the cost of a copy of CPU memory into `destination`; None: into a new tensor, made with `options`.

    One memory copy does it if both sides have the same type and the same strides, without gaps. For any other,
    PyTorch (`copy_requires_temporaries` in Copy.cu) first makes the source contiguous, in memory that is not pinned,
    and copies into a temporary if the destination is not contiguous.
    """
    layout = options.get("memory_format") or torch.preserve_format
    if destination is None:
        dtype = options.get("dtype") or source.dtype
        destination = torch.empty_like(source, device="meta", memory_format=layout)
    else:
        dtype, source = destination.dtype, source.expand(destination.shape)
    dense = torch.empty_like(source, device="meta", memory_format=torch.preserve_format)
    direct = dtype == source.dtype and _strides(source) == _strides(dense) == _strides(destination)
    converted = asynchronous and dtype != source.dtype  # on the GPU; a blocking copy converts on the CPU
    return CopyCost(
        blocks=not (asynchronous and is_pinned(source) and (direct or source.is_contiguous())),
        launches=not direct and (converted or not destination.is_contiguous()),
    )


def _strides(tensor: Tensor) -> list[int]:
    return [stride for stride, size in zip(tensor.stride(), tensor.shape, strict=True) if size > 1]


class CopiesToCpu:
    """Copies to pinned memory that were launched without waiting: until somebody waits, the memory holds garbage."""

    def __init__(self) -> None:
        self._arriving: list[tuple[Tensor, Tensor]] = []

    @property
    def launched(self) -> tuple[tuple[Tensor, Tensor], ...]:
        """Those that have not arrived."""
        return tuple(self._arriving)

    def launch(self, destination: Tensor, *, new: bool) -> None:
        """Take the values away that a copy has just put there, until it arrives; a `new` tensor is pinned."""
        if new:
            _mark_pinned(destination)
        elif not is_pinned(destination):
            return  # such a copy waits
        self._arriving.append((destination, destination.clone()))
        destination.fill_(float("nan") if destination.is_floating_point() else 1)

    def finish(self, copies: tuple[tuple[Tensor, Tensor], ...] | None = None) -> None:
        """Let these copies arrive; None: all."""
        for pair in self.launched if copies is None else copies:
            if any(pair is other for other in self._arriving):
                pair[0].copy_(pair[1])
                self._arriving = [other for other in self._arriving if other is not pair]

    def forget(self) -> None:
        """Let none arrive any more."""
        self._arriving = []


COPIES_TO_CPU = CopiesToCpu()
