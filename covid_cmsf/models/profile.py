"""Count the parameters of an encoder, its GFLOPs for one clip, and the bytes kept for its backward pass.

One multiply-accumulate counts as one operation, as in vision papers and torchvision's tables. Only convolutions and
linear layers are counted. Everything runs without data, so this is fast for any input size.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from covid_cmsf.models.checkpoints.metadata import Size
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.gradient_checkpointing import run_block, trunk_blocks
from covid_cmsf.models.precision import autocast
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


@dataclass(frozen=True)
class ActivationBytes:
    """Bytes of activations for one clip: kept until the backward pass, and computed again for the largest block."""

    kept: int
    recomputed: int

    @property
    def peak(self) -> int:
        """Bytes at the start of the backward pass of the largest block."""
        return self.kept + self.recomputed


def activation_bytes(
    name: str, size: Size, *, in_channels: int = 3, precision: str = "fp32", gradient_checkpointing: bool = False
) -> ActivationBytes:
    """Return what autograd keeps of the encoder `name` for one clip of `size` (T, H, W), without parameters.

    It is the part of a training step's memory that grows with the batch, by the rules of PyTorch's CPU operations.
    Gradients of activations and workspaces of kernels are not in it.
    """
    # Half-precision copies of the weights are kept once a step, whatever the batch: only what a third clip adds counts.
    two, three = (
        _batch_bytes(name, (count, in_channels, *size), precision, gradient_checkpointing) for count in (2, 3)
    )
    return ActivationBytes(three.kept - two.kept, three.recomputed - two.recomputed)


def _batch_bytes(name: str, shape: tuple[int, ...], precision: str, gradient_checkpointing: bool) -> ActivationBytes:
    inputs: list[Tensor] = []
    with torch.device("meta"):
        encoder = create_model(name, in_channels=shape[1])
    with FakeTensorMode(), autocast(precision, "cpu"):  # not on the meta device, which autocast does not know
        _pretend_weights_(encoder)
        clips = torch.empty(shape)
        handle = encoder.trunk.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
        _, kept = _saved_bytes(encoder, partial(encoder, clips))
        if not gradient_checkpointing:
            return ActivationBytes(kept, 0)
        handle.remove()
        encoder.gradient_checkpointing = True
        _, kept = _saved_bytes(encoder, partial(encoder, clips))
        x, largest = inputs[0], 0
        for layers in trunk_blocks(encoder.trunk):
            output, recomputed = _saved_bytes(encoder, partial(run_block, layers, x), known=x)
            x, largest = output.detach(), max(largest, recomputed)
        return ActivationBytes(kept, largest)


def _pretend_weights_(encoder: Encoder) -> None:
    """Replace weights on the meta device by weights on the CPU that have no data either."""
    for module in encoder.modules():
        for name, weight in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(_empty_twin(weight)))
        for name, buffer in module.named_buffers(recurse=False):
            setattr(module, name, _empty_twin(buffer))


def _empty_twin(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")


def _saved_bytes(encoder: Encoder, compute: Callable[[], Tensor], known: Tensor | None = None) -> tuple[Tensor, int]:
    """Return the result, and the bytes that autograd saves for it: each memory once, no parameters, not `known`."""
    saved: dict[int, torch.UntypedStorage] = {}  # kept alive, so that no address occurs twice

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        saved[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = compute()
    others = [*encoder.parameters(), *encoder.buffers(), *([] if known is None else [known])]
    for tensor in others:
        saved.pop(tensor.untyped_storage()._cdata, None)
    return output, sum(storage.nbytes() for storage in saved.values())
