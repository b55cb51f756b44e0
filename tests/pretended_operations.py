"""What operations cost on the pretended GPU (`pretended_gpu`): which wait, which copy, which launch nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

aten = torch.ops.aten
WAITS = {  # results whose value or size the CPU has to know
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.is_nonzero.default,
    aten.equal.default, aten.bincount.default, aten._unique2.default, aten.unique_dim.default,
    aten.repeat_interleave.Tensor,
}  # fmt: skip
INDEXING = {
    aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default,
    aten._unsafe_index.Tensor,
}  # fmt: skip
COPIES = {aten._to_copy.default, aten.copy_.default}
WITHOUT_KERNEL = {
    "view", "_unsafe_view", "reshape", "_reshape_alias", "slice", "select", "unsqueeze", "squeeze", "expand", "permute",
    "transpose", "t", "detach", "split", "split_with_sizes", "unbind", "alias", "as_strided", "lift_fresh", "unfold",
    "diagonal", "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_local_scalar_dense",
    "set_", "resize_",
}  # fmt: skip


@contextmanager
def without_onednn_bug(func: Any, args: Any) -> Iterator[None]:
    """Keep oneDNN from weight gradients that are wrong: of a kernel longer than the clip, PyTorch 2.15 on AVX-512."""
    is_short = func is aten.convolution_backward.default and args[2].dim() == 5 and args[2].shape[2] > args[1].shape[2]
    enabled = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled and not is_short)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(enabled)


def written_arguments(func: Any, args: Any, kwargs: Any) -> Any:
    """Return the arguments that an in-place operation (or one with `out`) returns; None for other operations."""
    schema = func._schema
    written = {}
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = kwargs.get(argument.name, args[position] if position < len(args) else None)
            written.update(dict.fromkeys(argument.alias_info.before_set, value))
    aliases = [one.alias_info for one in schema.returns if one.alias_info is not None and one.alias_info.is_write]
    if not aliases or len(aliases) != len(schema.returns):
        return None
    values = tuple(written[next(iter(alias.before_set))] for alias in aliases)
    return values[0] if len(values) == 1 else values
