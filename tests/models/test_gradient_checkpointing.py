"""Gradient checkpointing: the numbers of training without it, to the last bit, from less memory."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from covid_cmsf.models import Encoder, create_model, list_models
from covid_cmsf.models.encoder import freeze_
from covid_cmsf.models.gradient_checkpointing import checkpointed_trunk, trunk_blocks
from covid_cmsf.models.precision import autocast
from covid_cmsf.models.profile import activation_bytes

Values = dict[str, Tensor]


def make_pair(name: str) -> tuple[Encoder, Encoder]:
    torch.manual_seed(0)
    plain = create_model(name)
    checkpointed = copy.deepcopy(plain)
    checkpointed.gradient_checkpointing = True
    return plain, checkpointed


def make_clip(encoder: Encoder) -> Tensor:
    frames, height, width = (max(low, size) for low, size in zip(encoder.min_input_size, (4, 16, 16), strict=True))
    return torch.randn(2, encoder.in_channels, frames, height, width, generator=torch.Generator().manual_seed(1))


def train_twice(encoder: Encoder, *, precision: str = "fp32") -> Values:
    """Two steps of SGD; the features, gradients and everything in the state dict."""
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1)
    clip, found = make_clip(encoder), {}
    for number in range(2):
        with autocast(precision, "cpu"):
            feature = encoder(clip)
        optimizer.zero_grad()
        feature.float().square().mean().backward()
        found[f"feature {number}"] = feature.detach()
        found |= {f"gradient {number} {key}": value for key, value in gradients(encoder).items()}
        optimizer.step()
    return {**found, **{key: value.clone() for key, value in encoder.state_dict().items()}}


def gradients(module: nn.Module) -> Values:
    return {key: weight.grad.clone() for key, weight in module.named_parameters() if weight.grad is not None}


def differing(one: Values, other: Values) -> list[str]:
    assert one.keys() == other.keys()
    return [key for key in one if not torch.equal(one[key], other[key])]


def counted(layer: nn.Module) -> Callable[[], int]:
    """How often a layer is computed."""
    calls: list[int] = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    return lambda: len(calls)


CASES = [(name, "fp32") for name in list_models() if name != "toy"]


@pytest.mark.parametrize(("name", "precision"), [*CASES, ("s3d_tiny", "bf16"), ("r10_small", "bf16")])
def test_features_gradients_and_running_statistics_are_the_same_to_the_last_bit(name: str, precision: str) -> None:
    plain, checkpointed = make_pair(name)
    norms = [module for module in checkpointed.modules() if isinstance(module, nn.modules.batchnorm._BatchNorm)]
    calls = counted(norms[0])
    assert differing(train_twice(plain, precision=precision), train_twice(checkpointed, precision=precision)) == []
    assert calls() == 4, "nothing was computed again"
    tracked = [value for key, value in checkpointed.state_dict().items() if key.endswith("num_batches_tracked")]
    assert tracked and all(value == 2 for value in tracked)


def test_frozen_batch_norm_uses_its_running_statistics_in_both_computations() -> None:
    plain, checkpointed = make_pair("s3d_tiny")
    for encoder in (plain, checkpointed):
        for module in encoder.modules():
            if isinstance(module, nn.BatchNorm3d):
                module.running_mean.fill_(0.1)  # type: ignore[union-attr]
                module.eval()
    one, other = train_twice(plain), train_twice(checkpointed)
    assert differing(one, other) == []
    assert all(value == 0 for key, value in other.items() if key.endswith("num_batches_tracked"))


def test_several_forward_passes_before_one_backward_pass_update_the_statistics_once_each() -> None:
    results = []
    for encoder in make_pair("c21d_tiny"):
        clip = make_clip(encoder).repeat(2, 1, 1, 1, 1)
        torch.cat([encoder(chunk) for chunk in clip.chunk(2)]).square().mean().backward()  # batch_norm.groups
        results.append({**encoder.state_dict(), **{f"gradient {key}": one for key, one in gradients(encoder).items()}})
    assert differing(results[0], results[1]) == []
    assert results[1]["trunk.stage1.bn1.num_batches_tracked"] == 2


def test_dropout_within_a_block_drops_the_same_values_again() -> None:
    results = []
    for checkpointed in (False, True):
        torch.manual_seed(0)
        trunk = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Dropout(0.5), nn.Conv2d(4, 4, 3), nn.Dropout(0.5))
        images = torch.randn(2, 3, 8, 8)
        output = checkpointed_trunk(trunk, images) if checkpointed else trunk(images)
        output.sum().backward()
        results.append(gradients(trunk) | {"next": torch.rand(1)})
    assert differing(results[0], results[1]) == []


def test_nothing_is_computed_twice_without_gradients() -> None:
    _, encoder = make_pair("c21d_tiny")
    calls = counted(encoder.trunk[0])
    with torch.no_grad():
        encoder(make_clip(encoder))
    freeze_(encoder)(make_clip(encoder))
    assert calls() == 2


@pytest.mark.slow
def test_a_compiled_encoder_updates_its_statistics_once_too() -> None:
    plain, checkpointed = make_pair("c21d_tiny")
    checkpointed.compile(backend="aot_eager")  # the default, inductor, takes two minutes
    one, other = train_twice(plain), train_twice(checkpointed)
    for key, value in one.items():  # the compiler rounds differently
        torch.testing.assert_close(other[key], value, rtol=2e-3, atol=2e-5, msg=key)
    assert other["trunk.stage1.bn1.num_batches_tracked"] == 2


def test_a_block_begins_at_every_layer_with_a_convolution() -> None:
    s3d, r18 = create_model("s3d"), create_model("r18")
    names = {module: name for name, module in s3d.trunk.named_children()}
    blocks = [[names[layer] for layer in block] for block in trunk_blocks(s3d.trunk)]
    assert blocks[:4] == [["Conv_1a", "MaxPool_2a"], ["Conv_2b"], ["Conv_2c", "MaxPool_3a"], ["Mixed_3b"]]
    assert blocks[-3:] == [["Mixed_4f", "MaxPool_5a"], ["Mixed_5b"], ["Mixed_5c"]]
    assert [len(block) for block in trunk_blocks(r18.trunk)] == [4] + 8 * [1]


def saved_bytes(encoder: Encoder, clip: Tensor) -> int:
    """Slow twin of `activation_bytes`: what autograd saves of a real forward pass."""
    saved: dict[int, Tensor] = {}
    weights = {weight.data_ptr() for weight in (*encoder.parameters(), *encoder.buffers())}

    def pack(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        encoder(clip)
    return sum(one.untyped_storage().nbytes() for place, one in saved.items() if place not in weights)


@pytest.mark.parametrize("gradient_checkpointing", [False, True])
@pytest.mark.parametrize("name", ["s3d_tiny", "c21d_tiny", "r10_small"])
def test_the_memory_that_is_estimated_is_kept(name: str, gradient_checkpointing: bool) -> None:
    size = (1, 32, 32) if name == "r10_small" else (8, 32, 32)
    estimate = activation_bytes(name, size, gradient_checkpointing=gradient_checkpointing)
    encoder = create_model(name)
    encoder.gradient_checkpointing = gradient_checkpointing
    real = [saved_bytes(encoder, torch.randn(count, 3, *size)) for count in (2, 3)]
    assert estimate.kept == pytest.approx(real[1] - real[0], rel=0.02)


@pytest.mark.slow
def test_s3d_at_the_size_of_the_paper_needs_less_than_half_the_memory() -> None:
    plain, less = (
        activation_bytes("s3d", (32, 128, 128), gradient_checkpointing=checkpointed) for checkpointed in (False, True)
    )
    assert less.kept < 0.1 * plain.kept and less.peak < 0.45 * plain.peak
