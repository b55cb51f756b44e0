"""The pretended GPU refuses what CUDA refuses, and counts what costs time there."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from covid_cmsf.methods.diagnostics import embedding_std
from covid_cmsf.methods.neighbors import nearest
from covid_cmsf.models import create_model
from tests.pretended_gpu import DeviceMismatch, pretended_gpu


def test_values_and_gradients_are_those_of_the_cpu() -> None:
    torch.manual_seed(0)
    layer, points = torch.nn.Linear(3, 2), torch.randn(5, 3)
    layer(points).square().sum().backward()
    assert layer.weight.grad is not None
    expected = layer.weight.grad.clone()
    layer.zero_grad()
    with pretended_gpu() as gpu:
        moved = layer.to("cuda")
        moved(points.to("cuda")).square().sum().backward()
        assert moved.weight.is_cuda and moved.weight.grad is not None and moved.weight.grad.is_cuda
        assert torch.equal(moved.weight.grad.cpu(), expected)
        assert gpu.launches > 5


def test_gradients_of_an_encoder_are_those_of_the_cpu_also_for_clips_shorter_than_a_kernel() -> None:
    torch.manual_seed(0)
    encoder, clip = create_model("s3d_tiny"), torch.randn(4, 3, 6, 24, 24)

    def gradients(device: str) -> dict[str, torch.Tensor]:
        encoder.to(device).train().zero_grad()
        encoder(clip.to(device)).square().sum().backward()
        return {name: weight.grad.cpu() for name, weight in encoder.named_parameters() if weight.grad is not None}

    expected = gradients("cpu")
    with pretended_gpu():
        found = gradients("cuda")
    assert len(expected) > 50 and found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert torch.allclose(found[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), name


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pretended_gpu():
        there = torch.ones(3, device="cuda")
        with pytest.raises(DeviceMismatch, match="cuda:0 and cpu"):
            there + torch.ones(3)
        with pytest.raises(DeviceMismatch):
            torch.ones(3)[torch.zeros(1, dtype=torch.int64, device="cuda")]
        with pytest.raises(DeviceMismatch, match="generator"):
            torch.rand(3, device="cuda", generator=torch.Generator())
        with pytest.raises(TypeError, match="numpy"):
            there.numpy()
        assert (there + torch.tensor(1.0)).sum().item() == 6  # a scalar may be on the CPU


def test_a_mismatch_names_the_line_of_the_project() -> None:
    with pretended_gpu(), pytest.raises(DeviceMismatch, match=r"covid_cmsf/methods/neighbors\.py:\d+"):
        nearest(torch.ones(1, 2, device="cuda"), torch.ones(3, 2), 1)


def test_a_synchronization_names_the_line_that_waits() -> None:
    with pretended_gpu() as gpu:
        values = torch.randn(4, 3).pin_memory().to("cuda", non_blocking=True)
        assert not gpu.synchronizations
        embedding_std(values)
        ((what, line),) = gpu.synchronizations
    place, function = line.split(" in ")
    path, number = place.split(":")
    source = (Path(__file__).parents[2] / path).read_text().splitlines()
    assert "float(embeddings" in source[int(number) - 1] and "_local_scalar_dense" in what
    assert function == "embedding_std" and gpu.lines == [f"1 x {what} at {line}"]


@pytest.mark.parametrize(
    "use",
    [
        lambda x: x.sum().item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x.unique(),
        lambda x: bool((x > 0).any()),
        lambda x: x[torch.tensor([0])],
        lambda x: torch.tensor([1.0], device="cuda"),
        lambda x: torch.zeros(2).to("cuda", non_blocking=True),
        lambda x: torch.zeros(2).pin_memory().to("cuda"),
        lambda x: torch.zeros(2, 3).pin_memory()[:, :2].to("cuda", non_blocking=True),
        lambda x: x.to("cpu"),
        lambda x: torch.zeros(3).copy_(x, non_blocking=True),
        lambda x: torch.cuda.synchronize(),
    ],
)
def test_whatever_waits_for_the_gpu_is_counted(use: Callable[[torch.Tensor], object]) -> None:
    with pretended_gpu() as gpu:
        x = torch.ones(3, device="cuda")
        assert gpu.synchronizations.total() == 0
        use(x)
        assert gpu.synchronizations.total() == 1, gpu.lines


def test_views_launch_nothing_and_operations_launch_one_kernel_each() -> None:
    with pretended_gpu() as gpu:
        x = torch.ones(4, 6, device="cuda")
        gpu.reset()
        x.view(2, 12).t()[1:].unsqueeze(0).expand(3, 11, 2)
        assert gpu.launches == 0
        x.mul_(2).add_(1)
        assert gpu.launches == 2 and gpu.synchronizations.total() == 0


@pytest.mark.parametrize(
    ("channels_last", "rows", "height", "kernels", "waits"),
    [
        (False, 4, 6, 0, 0),
        (True, 4, 6, 0, 0),
        (False, 2, 6, 0, 0),  # into some of the rows
        (False, 4, 5, 1, 0),  # lower than what they are copied into
        (True, 4, 5, 1, 1),  # PyTorch makes such a source contiguous, in memory that is not pinned
    ],
)
def test_a_copy_into_a_slice_costs_what_pytorch_makes_of_it(
    channels_last: bool, rows: int, height: int, kernels: int, waits: int
) -> None:
    def images(rows: int, height: int, device: str) -> torch.Tensor:
        stored = (rows, height, 8, 3) if channels_last else (rows, 3, height, 8)
        values = torch.arange(rows * height * 24, device=device).view(stored)
        return values.permute(0, 3, 1, 2) if channels_last else values

    with pretended_gpu() as gpu:
        there, here = images(4, 6, "cuda"), images(rows, height, "cpu").pin_memory()
        gpu.reset()
        there[:rows, :, :height].copy_(here, non_blocking=True)
        assert (gpu.launches, gpu.synchronizations.total()) == (kernels, waits), gpu.lines
        gpu.reset()
        there[0, :, :height].copy_(here[0], non_blocking=True)
        assert not gpu.lines, "rows of a pinned tensor are pinned"
        assert torch.equal(there[:rows, :, :height].cpu(), here)


def test_a_copy_that_does_not_wait_arrives_when_somebody_does() -> None:
    with pretended_gpu() as gpu:
        x = torch.ones(3, device="cuda")
        first, event = x.to("cpu", non_blocking=True), torch.cuda.Event()
        event.record()
        second = (2 * x).to("cpu", non_blocking=True)
        assert first.isnan().all() and second.isnan().all() and not gpu.synchronizations
        event.synchronize()
        assert first.tolist() == [1, 1, 1] and second.isnan().all() and gpu.synchronizations.total() == 1
        torch.cuda.synchronize()
        assert second.tolist() == [2, 2, 2]
