"""Every method trains on the pretended GPU: no device mismatch, and the loss of the CPU."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import torch
import yaml

from covid_cmsf.devices import GpuMemoryError
from covid_cmsf.diagnostics.generated import method_names
from covid_cmsf.methods.diagnostics import embedding_std
from covid_cmsf.methods.mean_shift import CmsfConfig
from covid_cmsf.models import networks
from covid_cmsf.models.networks import Network
from covid_cmsf.training import data, loop, step
from covid_cmsf.training.failures import NonFiniteLoss, replay
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.step import StepResult
from covid_cmsf.views import batch as batch_module
from covid_cmsf.views.batch import Batch
from covid_cmsf.views.dataset import ViewDataset
from covid_cmsf.views.modalities import MODALITIES
from tests.gpu.runs import RUNS, settings
from tests.pretended_gpu import LOG, pretended_gpu
from tests.pretended_streams import MAIN, STREAMS
from tests.training.factories import losses, stop_at

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

# Where a step may wait, once each: for the loss, in every step, and for what some methods have to know besides.
FOR_THE_LOSS = "covid_cmsf/training/distributed.py in DistributedContext.all_reduce_sum"
ALSO_ALLOWED = {
    "cmsf, all of a label": ["covid_cmsf/methods/constraints.py in LabelConstraint.mean"],
    "cmsf, two banks": [
        "covid_cmsf/methods/mean_shift.py in SemiSupervisedMeanShift.losses",
        "covid_cmsf/methods/memory_bank.py in MemoryBanks.push_",
    ],
}


Steps = list[list[str]]  # per step: its synchronizations


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Collects the synchronizations of every step and of its batch's copy, without those of a line of metrics."""
    found: Steps = []
    real_train_batch, real_log_metrics = loop.train_batch, loop.log_metrics

    def copied_aside(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
        LOG.reset()
        yield from batch_module.copied_aside(batches, device)

    def train_batch(run: loop.Run, batch: Batch) -> bool:
        stopped = real_train_batch(run, batch)
        found.append(LOG.lines)
        LOG.reset()
        return stopped

    def log_metrics(run: loop.Run, result: StepResult) -> None:
        before = LOG.synchronizations.copy()
        real_log_metrics(run, result)
        LOG.synchronizations = before

    monkeypatch.setattr(loop, "copied_aside", copied_aside)
    monkeypatch.setattr(loop, "train_batch", train_batch)
    monkeypatch.setattr(loop, "log_metrics", log_metrics)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_losses_of_the_cpu_and_hardly_waits(
    name: str,
    clips: Path,
    flow_weights: Path,
    tmp_path: Path,
    steps: Steps,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if "motion" in name:
        clips = request.getfixturevalue("motion_clips")
    if name == "audio":
        clips = request.getfixturevalue("audio_clips")
    with monkeypatch.context() as patch:  # the views of a GPU; test_views compares them to those of a CPU
        patch.setattr(data, "ViewDataset", lambda *args, **options: ViewDataset(*args, **{**options, "defer": True}))
        on_cpu = settings(name, clips, flow_weights, device="cpu", workers=0)
        assert run_training(on_cpu, tmp_path / "cpu") == "finished"
    steps.clear()
    with pretended_gpu() as gpu:
        assert run_training(settings(name, clips, flow_weights, device="cuda"), tmp_path / "gpu") == "finished"
        assert gpu.launches > 50, "it ran elsewhere"
    allowed = [FOR_THE_LOSS, *ALSO_ALLOWED.get(name, [])]
    assert [surplus(lines, allowed) for lines in steps] == [[] for _ in steps]
    assert {place_of(line) for line in steps[-1]} == set(allowed), "the budget is larger than it has to be"
    first, second = (
        [line["loss"] for line in read_metrics(tmp_path / place / "metrics.jsonl") if "loss" in line]
        for place in ("cpu", "gpu")
    )
    compared = next(number for number, loss in enumerate(first, 1) if loss != 0)  # 0: the bank had no negatives yet
    assert second[:compared] == pytest.approx(first[:compared], rel=1e-5)
    assert len(first) == len(second) and all(torch.tensor(second).isfinite())


def place_of(line: str) -> str:
    """The file and the function of a synchronization."""
    return re.sub(r":\d+ in ", " in ", line.split(" at ")[-1])


def surplus(lines: list[str], allowed: list[str]) -> list[str]:
    """The synchronizations of a step beyond those that are allowed, each once."""
    left, found = Counter(allowed), []
    for line in lines:
        left[place_of(line)] -= int(line.split(" x ")[0])
        if left[place_of(line)] < 0:
            found.append(line)
    return found


def test_a_synchronization_that_is_added_to_a_step_is_named(
    clips: Path, flow_weights: Path, tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def curious(target: Network, online: Network, momentum: float) -> None:
        networks.ema_update_(target, online, momentum)
        embedding_std(next(target.parameters()))

    monkeypatch.setattr(step, "ema_update_", curious)
    with pretended_gpu():
        run_training(settings("msf", clips, flow_weights, device="cuda"), tmp_path / "run")
    assert len(steps) == 5
    for lines in steps:
        (found,) = surplus(lines, [FOR_THE_LOSS])
        assert place_of(found) == "covid_cmsf/methods/diagnostics.py in embedding_std"


def test_every_method_and_constraint_is_among_the_runs() -> None:
    methods = [method for method, _, _ in RUNS.values()]
    assert {method["name"] for method in methods} == set(method_names())
    constraints = get_args(CmsfConfig.model_fields["constraint"].annotation)
    chosen = {method.get("constraint", "guide") for method in methods if method["name"] == "cmsf"}
    assert chosen == set(constraints) and len(constraints) >= 3


def test_every_modality_and_precision_is_among_the_runs() -> None:
    changes = [changes for _, _, changes in RUNS.values()]
    assert {one.get("modality", "rgb") for one in changes} == set(MODALITIES)
    assert {one.get("precision", "fp32") for one in changes} == {"fp32", "fp16"}  # bf16 has a test of its own


def test_the_optimizer_steps_in_fused_kernels(clips: Path, flow_weights: Path, tmp_path: Path) -> None:
    for name, kernel in (("msf", "_fused_adam_"), ("msf, clipped, accumulated", "_fused_sgd_")):
        with pretended_gpu() as gpu:
            run_training(settings(name, clips, flow_weights, device="cuda"), tmp_path / name)
        found = {where: count for (what, where), count in gpu.kernels.items() if what == kernel}
        assert found and all(" in update" in where for where in found), gpu.kernels.most_common(30)


@pytest.mark.parametrize("name", ["coclr", "cmsf, two banks", "cmsf, cached guide", "infonce, shuffled", "xent"])
def test_a_failed_step_is_replayed_on_the_gpu(name: str, clips: Path, flow_weights: Path, tmp_path: Path) -> None:
    chosen = settings(name, clips, flow_weights, device="cuda")
    wild = chosen.optimizer.model_copy(update={"name": "sgd", "lr": 1e38})
    with pretended_gpu() as gpu:
        with pytest.raises(NonFiniteLoss):
            run_training(chosen.model_copy(update={"optimizer": wild}), tmp_path / "run")
        (file,) = (tmp_path / "run").glob("failed-step-*.pt")
        gpu.reset()
        found = replay(file, device="cuda")
        assert gpu.launches > 50, "it was replayed elsewhere"
    on_cpu = replay(file, device="cpu")
    assert found.first_bad is not None and not math.isfinite(found.loss)
    assert (found.step, found.first_bad, found.bad_entries) == (on_cpu.step, on_cpu.first_bad, on_cpu.bad_entries)


def test_a_stopped_run_resumes_on_the_gpu(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("cmsf, live guide", clips, flow_weights, device="cuda")
    with pretended_gpu():
        assert run_training(chosen, tmp_path / "whole") == "finished"
        stop_at(monkeypatch, 3)
        assert run_training(chosen, tmp_path / "stopped") == "stopped"
        assert run_training(chosen, tmp_path / "stopped") == "finished"
    assert losses(tmp_path / "stopped") == losses(tmp_path / "whole")


def test_a_batch_is_copied_on_a_stream_of_its_own_which_the_step_waits_for(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside: list[int] = []
    real = step.forward_backward

    def forward_backward(components: Any, batch: Batch, *args: Any) -> StepResult:
        before = LOG.copied_bytes
        result = real(components, batch, *args)
        inside.append(LOG.copied_bytes - before)
        assert batch.videos.is_cuda and STREAMS.current is MAIN
        return result

    monkeypatch.setattr(loop, "forward_backward", forward_backward)
    with pretended_gpu():
        run_training(settings("msf", clips, flow_weights, device="cuda"), tmp_path / "run")
        log = STREAMS.log
    assert len(inside) == 5 and max(inside) < 1000, "bytes copied within a step: none of the frames"
    tensors = ["recorded"] * 6  # frames, numbers, rows, videos, sources, labels
    assert log == 5 * ["copied aside", "waited for", *tensors]


def test_the_time_that_the_gpu_waits_for_data_is_that_between_events() -> None:
    def batches() -> Iterator[Any]:
        for waited in (1.0, 0.0, 2.0):
            STREAMS.seconds += waited
            yield "batch"

    now = [0.0]
    with pretended_gpu():
        timer = loop.ThroughputTimer(lambda: now[0], device=torch.device("cuda", 0))
        for _ in timer.timed(batches()):
            STREAMS.seconds += 5.0
        now[0] = 12.0
        assert timer.read()["data_fraction"] == pytest.approx(3 / 12)
        now[0] = 13.0
        assert timer.read()["data_fraction"] == 0


def test_auto_is_bf16_on_the_gpu_and_stays_so_when_a_run_is_resumed_on_the_cpu(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = settings("msf", clips, flow_weights, device="cuda").model_copy(update={"precision": "auto"})
    benchmark: list[bool] = []
    real = step.forward_backward

    def forward_backward(*args: Any) -> StepResult:
        benchmark.append(torch.backends.cudnn.benchmark)
        return real(*args)

    monkeypatch.setattr(loop, "forward_backward", forward_backward)
    with pretended_gpu():
        with monkeypatch.context() as patch:
            stop_at(patch, 3)
            assert run_training(chosen, tmp_path / "run") == "stopped"
        assert all(benchmark) and len(benchmark) == 3 and not torch.backends.cudnn.benchmark
    assert yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())["precision"] == "bf16"
    on_cpu = chosen.model_copy(update={"runtime": chosen.runtime.model_copy(update={"device": "cpu"})})
    with pytest.raises(ValueError, match="precision: 'bf16' -> 'fp32'"):
        run_training(on_cpu.model_copy(update={"precision": "fp32"}), tmp_path / "run")
    assert run_training(on_cpu, tmp_path / "run") == "finished"
    starts = [json.loads(line) for line in (tmp_path / "run" / "environment.jsonl").read_text().splitlines()]
    assert [(start["device"], start["precision"]) for start in starts] == [("cuda:0", "bf16"), ("cpu", "bf16")]
    assert not any(benchmark[3:])


def test_a_full_gpu_is_explained_in_one_line(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")

    monkeypatch.setattr(torch.nn.functional, "conv3d", full)
    chosen = settings("cmsf, live guide", clips, flow_weights, device="cuda")
    with pretended_gpu(), pytest.raises(GpuMemoryError) as raised:
        run_training(chosen, tmp_path / "run")
    message = str(raised.value)
    for advice in (
        "4 clips per GPU",
        "precision=bf16",
        "runtime.gradient_checkpointing=true",
        "batch_size=2 optimizer.accumulate=2",
        "cache=views",
        "views.length, now 8",
    ):
        assert advice in message
    assert "\n" not in message
