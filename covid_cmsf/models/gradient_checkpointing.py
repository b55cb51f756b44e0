"""Gradient checkpointing: keep the inputs of an encoder's blocks only, and compute the rest again when needed.

A block begins at every layer with a convolution; pools and the batch norm of a ResNet's first convolution belong to the
block before. The numbers are those of training without it: batch norm normalizes the same batch again, and its running
statistics are updated by the first computation only. Random numbers and the precision of autocast are restored.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

CONVOLUTIONS = (nn.Conv2d, nn.Conv3d)
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def trunk_blocks(trunk: nn.Sequential) -> list[list[nn.Module]]:
    """Return the layers of a trunk by block; the stages of a ResNet are split into their residual blocks."""
    layers = [inner for layer in trunk for inner in (layer if isinstance(layer, nn.Sequential) else [layer])]
    blocks: list[list[nn.Module]] = []
    for layer in layers:
        if not blocks or any(isinstance(module, CONVOLUTIONS) for module in layer.modules()):
            blocks.append([])
        blocks[-1].append(layer)
    return blocks


def run_block(layers: list[nn.Module], x: Tensor) -> Tensor:
    """Apply the layers of a block one after the other."""
    for layer in layers:
        x = layer(x)
    return x


def checkpointed_trunk(trunk: nn.Sequential, x: Tensor) -> Tensor:
    """Return `trunk(x)`; the backward pass computes block after block again, from the inputs that were kept."""
    for layers in trunk_blocks(trunk):
        if torch.compiler.is_compiling():
            # The compiler turns updates of statistics into outputs of the first computation: there is no second one.
            x = checkpoint(run_block, layers, x, use_reentrant=False)
        else:
            x = checkpoint(run_block, layers, x, use_reentrant=False, context_fn=partial(_contexts, layers))
    return x


def _contexts(layers: list[nn.Module]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Return the contexts of the first and of the second computation of a block."""
    return nullcontext(), without_running_statistics(layers)


@contextmanager
def without_running_statistics(layers: list[nn.Module]) -> Iterator[None]:
    """Let batch norm in train mode update copies of its running statistics, which are then dropped.

    It normalizes by the batch. In eval mode (`batch_norm.mode: frozen`) it normalizes by its running statistics.
    """
    updating = [
        module
        for layer in layers
        for module in layer.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.training and module.track_running_stats
    ]
    # Copies, not None: the backward pass expects as many tensors as the first computation saved.
    kept = [{name: getattr(module, name) for name in STATISTICS} for module in updating]
    try:
        for module, statistics in zip(updating, kept, strict=True):
            for name, value in statistics.items():
                setattr(module, name, value.clone())
        yield
    finally:
        for module, statistics in zip(updating, kept, strict=True):
            for name, value in statistics.items():
                setattr(module, name, value)
