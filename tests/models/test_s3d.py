"""Our S3D against an independent one (torchvision's) and against slow blocks."""

import pytest
import torch
from torch import nn
from torchvision.models.video import s3d as torchvision_s3d

from covid_cmsf.models import create_model
from covid_cmsf.models.checkpoints.formats.torchvision import torchvision_s3d_keys
from covid_cmsf.models.s3d import TABLE, InceptionBlock, Mixed, SelfGating, SeparableConv


def torchvision_twin(ours: nn.Module, eps: float) -> nn.Module:
    """torchvision's S3D with the same numbers."""
    twin = torchvision_s3d()
    state = {torchvision_s3d_keys(key)[0]: value for key, value in ours.state_dict().items()}
    missing, unexpected = twin.load_state_dict(state, strict=False)
    assert set(missing) == {"classifier.1.weight", "classifier.1.bias"} and not unexpected
    for module in twin.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.eps, module.momentum = eps, 0.1
    trunk: nn.Module = twin.features
    return trunk


@pytest.mark.parametrize("eps", [1e-5, 1e-3])
def test_features_equal_torchvisions_in_eval_mode(eps: float) -> None:
    torch.manual_seed(0)
    ours = create_model("s3d", bn_eps=eps).eval()
    with torch.inference_mode():
        clip = torch.randn(1, 3, 8, 32, 32)
        torch.testing.assert_close(
            ours.forward_features(clip), torchvision_twin(ours, eps).eval()(clip), atol=1e-5, rtol=1e-4
        )


@pytest.mark.slow
def test_training_step_equals_torchvisions() -> None:
    torch.manual_seed(0)
    ours = create_model("s3d").double()
    twin = torchvision_twin(ours, 1e-5).double().train()
    clip = torch.randn(2, 3, 16, 64, 64, dtype=torch.float64)  # smaller ones leave the last norms too few values
    ours.forward_features(clip).square().mean().backward()
    twin(clip).square().mean().backward()
    theirs = {f"features.{key}": parameter.grad for key, parameter in twin.named_parameters()}
    for key, parameter in ours.named_parameters():
        grad, their_grad = parameter.grad, theirs[torchvision_s3d_keys(key)[0]]
        assert grad is not None and their_grad is not None
        assert (grad - their_grad).abs().max() <= 1e-8 * their_grad.abs().max(), key
    stats = {f"features.{key}": value for key, value in twin.named_buffers()}
    for key, value in ours.named_buffers():
        torch.testing.assert_close(value, stats[torchvision_s3d_keys(key)[0]])


def test_table_has_the_papers_widths() -> None:
    mixed = [layer for layer in TABLE.values() if isinstance(layer, Mixed)]
    outs = [layer.b0 + layer.b1[1] + layer.b2[1] + layer.b3 for layer in mixed]
    assert outs == [256, 480, 512, 512, 512, 528, 832, 832, 1024]


@pytest.mark.parametrize("stride", [1, 2])
def test_separable_is_two_convolutions_over_space_then_time(stride: int) -> None:
    block = SeparableConv(2, 3, kernel=3, stride=stride).double().eval()
    x = torch.randn(1, 2, 4, 5, 6, dtype=torch.float64)
    # Frame by frame over space, then pixel by pixel over time.
    frames = [nn.functional.conv2d(x[:, :, t], block.conv1.weight[:, :, 0], stride=stride, padding=1) for t in range(4)]
    space = block.bn1(torch.stack(frames, dim=2)).relu()
    slow = torch.empty(1, 3, -(-4 // stride), *space.shape[3:], dtype=torch.float64)
    for h in range(space.shape[3]):
        for w in range(space.shape[4]):
            kernel = block.conv2.weight[:, :, :, 0, 0]
            slow[..., h, w] = nn.functional.conv1d(space[..., h, w], kernel, stride=stride, padding=1)
    torch.testing.assert_close(block(x), block.bn2(slow).relu())


def test_gates_scale_channels_by_a_sigmoid_of_the_whole_clip() -> None:
    gate = SelfGating(3)
    x = torch.randn(2, 3, 2, 4, 4)
    for b in range(2):
        for c in range(3):
            scale = torch.sigmoid(gate.fc.weight[c] @ x[b].mean(dim=(1, 2, 3)) + gate.fc.bias[c])
            torch.testing.assert_close(gate(x)[b, c], x[b, c] * scale)


def test_gated_block_gates_each_branch_before_joining() -> None:
    block = InceptionBlock(4, [2, 2, 3, 2, 3, 1], gated=True).eval()
    x = torch.randn(1, 4, 3, 5, 5)
    gates = [block.get_submodule(f"gating_b{i}") for i in range(4)]
    branches = [block.branch0, block.branch1, block.branch2, block.branch3]
    slow = torch.cat([gate(branch(x)) for gate, branch in zip(gates, branches, strict=True)], dim=1)
    torch.testing.assert_close(block(x), slow)
    assert slow.shape[1] == block.out_channels


@pytest.mark.slow
@pytest.mark.parametrize("size", [(32, 128, 128), (16, 112, 112)])
def test_sizes_that_torchvision_refuses_work(size: tuple[int, int, int]) -> None:
    with torch.device("meta"):
        assert create_model("s3d").eval()(torch.empty(1, 3, *size)).shape == (1, 1024)
        with pytest.raises(RuntimeError):
            torchvision_s3d().eval()(torch.empty(1, 3, *size))
