"""`covid-cmsf doctor --gpu` on the pretended GPU, so that its first real run is not its first run."""

import json
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.diagnostics import gpu
from covid_cmsf.diagnostics.all_reduce import AllReduceTiming
from covid_cmsf.diagnostics.generated import method_names
from covid_cmsf.diagnostics.gpu import GpuTest, run_gpu_test
from covid_cmsf.training import step
from covid_cmsf.views.batch import Batch
from tests.pretended_gpu import GPU, pretended_gpu

SMALL = GpuTest(timed_encoder="c21d_tiny", timed_length=8, timed_size=32, timed_batch_size=4)


@pytest.mark.slow
def test_it_passes_and_covers_every_method() -> None:
    with pretended_gpu() as log:
        results = list(run_gpu_test(GPU, SMALL))
        assert log.launches > 1000
    assert [result.message for result in results if not result.passed] == []
    names = {result.name for result in results if result.kind == "correct"}
    assert len(method_names()) >= 12
    assert {"views", "flow (TV-L1)", *method_names(), *(f"{name}, bf16" for name in method_names())} == names
    assert {result.name for result in results if result.kind == "speed"} == {
        *("decode", "views", "step", "data share", "all-reduce")
    }
    assert {result.name for result in results if result.kind == "advice"} == {"workers", "batch size", "precision"}


def test_steps_are_timed_with_the_kernels_of_cudnn_that_training_has(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen: list[bool] = []

    def forward_backward(*args: Any) -> Any:
        chosen.append(torch.backends.cudnn.benchmark)
        return step.forward_backward(*args)

    monkeypatch.setattr(gpu, "forward_backward", forward_backward)
    with pretended_gpu():
        timed = [result.name for result in gpu.measure(GPU, SMALL)]
    assert "step" in timed and len(chosen) == 4 and all(chosen) and not torch.backends.cudnn.benchmark


def test_wrong_results_of_a_gpu_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    real_to = Batch.to

    def wrong_views(batch: Any, device: Any) -> Any:
        moved = real_to(batch, device)
        if torch.device(device).type == "cuda":
            for views in moved.views:
                for name in views:
                    views[name] = views[name] + 0.1
        return moved

    monkeypatch.setattr(Batch, "to", wrong_views)
    monkeypatch.setattr(gpu, "method_names", lambda: ["xent", "infonce"])
    monkeypatch.setattr(gpu, "measure", lambda device, test: iter(()))
    with pretended_gpu():
        failed = {result.name for result in run_gpu_test(GPU, SMALL) if not result.passed}
    assert {"views", "xent", "infonce"} <= failed and "flow (TV-L1)" not in failed


@pytest.mark.slow
def test_gradients_are_summed_over_processes_and_timed() -> None:
    devices = [torch.device("cpu")] * 2
    summed, timed = gpu.check_all_reduce(devices, num_values=1000, per_step=1.0)
    assert (summed.kind, summed.name, summed.passed) == ("correct", "all-reduce", True)
    assert timed.kind == "speed" and "between 2 GPUs" in timed.message and "of a step" in timed.message


def test_a_wrong_sum_and_none_at_all_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def lost(*args: Any, **options: Any) -> Any:
        raise RuntimeError("NCCL error")

    devices = [torch.device("cpu")] * 2
    monkeypatch.setattr(gpu, "time_all_reduce", lambda devices, num_values: AllReduceTiming(1.0, correct=False))
    assert not next(gpu.check_all_reduce(devices, num_values=10, per_step=1.0)).passed
    monkeypatch.setattr(gpu, "time_all_reduce", lost)
    (failed,) = gpu.check_all_reduce(devices, num_values=10, per_step=1.0)
    assert not failed.passed and "NCCL error" in failed.message


@pytest.mark.parametrize("passed", [True, False])
def test_the_command_reports_and_sets_the_exit_code(passed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    result = gpu.GpuResult("correct", "views", "largest difference 1", passed)
    monkeypatch.setattr(gpu, "run_gpu_test", lambda device: iter([result]))
    with pretended_gpu():
        shown = CliRunner().invoke(app, ["doctor", "--gpu", "--json"])
        table = CliRunner().invoke(app, ["doctor", "--gpu"])
    assert shown.exit_code == table.exit_code == (0 if passed else 1)
    assert json.loads(shown.output)["passed"] is passed and "largest difference" in table.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    shown = CliRunner().invoke(app, ["doctor", "--gpu"])
    assert shown.exit_code != 0 and "no GPU" in str(shown.exception) + shown.output


@pytest.mark.gpu
def test_a_real_gpu_computes_what_the_cpu_computes() -> None:
    results = list(run_gpu_test(torch.device("cuda:0")))
    assert [f"{result.name}: {result.message}" for result in results if not result.passed] == []
