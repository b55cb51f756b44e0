"""Every method trains on the pretended GPU: no device mismatch, and the loss of the CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.training import data, loop
from covid_cmsf.training.failures import GpuMemoryError
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.step import StepResult
from covid_cmsf.views.batch import Batch
from covid_cmsf.views.dataset import ViewDataset
from tests.pretended_gpu import LOG, pretended_gpu
from tests.training.factories import losses, make_config, stop_at

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

MAX_SYNCHRONIZATIONS = 3  # per step
LABELS: dict[str, Any] = {"name": "cmsf", "constraint": "label", "bank_size": 16}
GUIDED: dict[str, Any] = {"name": "cmsf", "bank_size": 16, "k": 2, "num_candidates": 4}
CACHED: dict[str, Any] = {"cache": "views", "cached_views": 2}
# name: (method, guides, other settings)
RUNS: dict[str, tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]] = {
    "infonce": ({"name": "infonce", "bank_size": 16, "exclude_negatives": "source"}, [], {}),
    "infonce, shuffled": (
        {"name": "infonce", "bank_size": 16, "batch_negatives": True}, [], {"batch_norm": {"shuffle": True}}
    ),
    "ubernce": ({"name": "ubernce", "bank_size": 16}, [], {}),
    "supcon": ({"name": "supcon", "bank_size": 16}, [], {}),
    "coclr": ({"name": "coclr", "bank_size": 16, "bank_warmup": 8}, [{}], {}),
    "msf": ({"name": "msf", "bank_size": 16, "include_siblings": False}, [], {}),
    "msf, clipped, accumulated": (
        {"name": "msf", "bank_size": 16}, [], {"optimizer": {"clip_norm": 1.0, "accumulate": 2, "name": "sgd"}}
    ),
    "byol_asym": ({"name": "byol_asym", "bank_size": 16}, [], {}),
    "cmsf, labels": (LABELS, [], {}),
    "cmsf, all of a label": ({**LABELS, "k": "all"}, [], {}),
    "cmsf, two banks": (
        {**LABELS, "constraint": "two_bank", "labeled_bank_size": 8}, [], {"labels": {"fraction": 0.5}}
    ),
    "cmsf, live guide": (GUIDED, [{}], {}),
    "cmsf, cached guide": (GUIDED, [CACHED], {}),
    "cmsf, mean of a guide": (GUIDED, [{**CACHED, "cache": "mean", "center": True}], {}),
    "cmsf, two guides": ({**GUIDED, "combine": "intersection"}, [{}, {"branch": "target"}], {}),
    "cmsf_2q": ({"name": "cmsf_2q", "bank_size": 16}, [], {}),
    "cmsf_km": ({"name": "cmsf_km", "bank_size": 16, "num_clusters": 4}, [], {"schedule": {"epochs": 2}}),
    "protonw": ({"name": "protonw", "bank_size": 16}, [], {}),
    "frzproto": ({"name": "frzproto"}, [], {}),
    "xent": ({"name": "xent"}, [], {}),
    "rgbdiff": ({"name": "msf", "bank_size": 16}, [], {"modality": "rgbdiff"}),
    "flow": ({"name": "msf", "bank_size": 16}, [], {"modality": "flow"}),
}  # fmt: skip


def settings(name: str, clips: Path, guide: Path, **runtime: Any) -> Any:
    method, guides, changes = RUNS[name]
    chosen = [{"weights": str(guide), "modality": "flow", **one} for one in guides]
    options = {"workers": 0, "threads": 1, "tensorboard": False, **runtime}
    return make_config(
        clips, **{"method": method, "guides": chosen, "runtime": options, "schedule": {"epochs": 1}, **changes}
    )


Steps = list[list[str]]  # per step: its synchronizations


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """Collects the synchronizations of every step on the pretended GPU, without those of a line of metrics."""
    found: Steps = []
    real_train_batch, real_log_metrics = loop.train_batch, loop.log_metrics

    def train_batch(run: loop.Run, batch: Batch) -> bool:
        LOG.reset()
        stopped = real_train_batch(run, batch)
        found.append(LOG.lines)
        return stopped

    def log_metrics(run: loop.Run, result: StepResult) -> None:
        before = LOG.synchronizations.copy()
        real_log_metrics(run, result)
        LOG.synchronizations = before

    monkeypatch.setattr(loop, "train_batch", train_batch)
    monkeypatch.setattr(loop, "log_metrics", log_metrics)
    return found


@pytest.mark.parametrize("name", RUNS)
def test_a_run_has_the_losses_of_the_cpu_and_hardly_waits(
    name: str, clips: Path, flow_weights: Path, tmp_path: Path, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:  # the views of a GPU; test_views compares them to those of a CPU
        patch.setattr(data, "ViewDataset", lambda *args, **options: ViewDataset(*args, **{**options, "defer": True}))
        assert run_training(settings(name, clips, flow_weights, device="cpu"), tmp_path / "cpu") == "finished"
    steps.clear()
    with pretended_gpu() as gpu:
        assert run_training(settings(name, clips, flow_weights, device="cuda"), tmp_path / "gpu") == "finished"
        assert gpu.launches > 50, "it ran elsewhere"
    for lines in steps:
        assert sum(int(line.split(" x ")[0]) for line in lines) <= MAX_SYNCHRONIZATIONS, lines
        assert not any("blocking copy" in line for line in lines), lines
    first, second = (
        [line["loss"] for line in read_metrics(tmp_path / place / "metrics.jsonl") if "loss" in line]
        for place in ("cpu", "gpu")
    )
    assert second[0] == pytest.approx(first[0], rel=1e-5)
    assert len(first) == len(second) and all(torch.tensor(second).isfinite())


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
    for advice in ("4 clips per GPU", "precision=bf16", "batch_size=2 optimizer.accumulate=2", "cache=views"):
        assert advice in message
    assert "\n" not in message
