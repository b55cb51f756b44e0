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
