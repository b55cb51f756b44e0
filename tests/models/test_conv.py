import pytest
import torch

from covid_cmsf.models.conv import TemporalConv
from covid_cmsf.models.precision import autocast


@pytest.mark.parametrize("kernel", [1, 3, 7])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("frames", [1, 2, 5, 8])
@pytest.mark.parametrize("dense", [True, False])
def test_gradients_equal_the_ordinary_convolutions(kernel: int, stride: int, frames: int, dense: bool) -> None:
    conv = TemporalConv(3, 4, kernel=kernel, stride=stride).double()
    x = torch.randn(2, 3, frames, 2, 3, dtype=torch.float64)
    x = (x if not dense else x.contiguous(memory_format=torch.channels_last_3d)).requires_grad_()
    y = conv(x)
    slow = torch.nn.functional.conv3d(x, conv.weight, stride=conv.stride, padding=conv.padding)
    assert torch.equal(y, slow)
    weighting = torch.randn_like(y)
    ours = torch.autograd.grad((y * weighting).sum(), (x, conv.weight))
    theirs = torch.autograd.grad((slow * weighting).sum(), (x, conv.weight))
    for our, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(our, their)


def test_only_what_needs_a_gradient_gets_one() -> None:
    conv = TemporalConv(2, 2, kernel=3, stride=1)
    conv(torch.randn(1, 2, 4, 2, 2)).sum().backward()
    assert conv.weight.grad is not None
    conv.requires_grad_(False)
    x = torch.randn(1, 2, 4, 2, 2, requires_grad=True)
    conv(x).sum().backward()
    assert x.grad is not None


def test_it_trains_under_autocast() -> None:
    conv = TemporalConv(2, 2, kernel=3, stride=1)
    with autocast("bf16", "cpu"):
        y = conv(torch.randn(1, 2, 4, 2, 2))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16 and conv.weight.grad is not None and conv.weight.grad.dtype == torch.float32


@pytest.mark.parametrize("frames", [1, 2, 3, 4])
@pytest.mark.parametrize("dense", [True, False])
def test_gradients_in_bf16_are_those_of_fp32_up_to_rounding(frames: int, dense: bool) -> None:
    """PyTorch's own gradient of the weight has values from uninitialized memory for 2 frames, on some CPUs."""
    conv = TemporalConv(48, 16, kernel=3, stride=1)
    x = torch.randn(2, 48, frames, 2, 2)
    x = (x if not dense else x.contiguous(memory_format=torch.channels_last_3d)).requires_grad_()
    weighting = torch.randn(2, 16, frames, 2, 2)
    exact = torch.autograd.grad((conv(x) * weighting).sum(), (x, conv.weight))
    for _ in range(8):  # what the memory holds is another thing each time
        torch.full((3, 48 * 16 * 3), 1e30)
        with autocast("bf16", "cpu"):
            y = conv(x)
        for our, their in zip(torch.autograd.grad((y * weighting).sum(), (x, conv.weight)), exact, strict=True):
            torch.testing.assert_close(our, their, rtol=0.05, atol=0.02 * float(their.abs().max()))
