"""A run that was stopped and continued is the run that was never stopped, bit for bit."""

import json
import os
import shutil
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.decoders import DecordReader, Frames
from covid_cmsf.training import build
from covid_cmsf.training import run as run_module
from covid_cmsf.training.config import RuntimeConfig, TrainConfig
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.views import loader as loader_module
from tests.training.factories import STEPS_PER_EPOCH, differing, finish, make_config, result, stop_at

# The first step, the middle of an epoch, its last step, the first of the next, and the very last.
STOPS = (1, 3, STEPS_PER_EPOCH, STEPS_PER_EPOCH + 1, 2 * STEPS_PER_EPOCH)


def cases(flow_weights: Path) -> dict[str, dict[str, Any]]:
    """Of every kind of state a run can have."""
    guide = {"weights": str(flow_weights), "modality": "flow"}
    sgd = {"name": "sgd", "lr": 0.05, "accumulate": 2, "clip_norm": 1.0, "predictor_lr_factor": 3.0}
    return {
        "infonce": {},
        "cmsf_cached_views": {
            "method": {"name": "cmsf", "bank_size": 16, "k": 2, "num_candidates": 4, "ema_schedule": "cosine"},
            "guides": [{**guide, "cache": "views", "cached_views": 2, "center": True}],
        },
        "two_queues": {"method": {"name": "cmsf_2q", "bank_size": 16, "k": 2, "num_candidates": 4}},
        "clusters": {"method": {"name": "cmsf_km", "bank_size": 16, "k": 2, "num_clusters": 5}},
        "coclr_live_guide_drop_self": {
            "method": {"name": "coclr", "bank_size": 8, "top_k": 2, "drop_self": 0.5},
            "guides": [guide],
        },
        "msf_sgd_cosine_warmup_accumulate": {
            "method": {"name": "msf", "bank_size": 16, "k": 3, "bank_warmup": 6},
            "optimizer": sgd,
            "schedule": {"epochs": 2, "name": "cosine", "interval": "step", "warmup_epochs": 0.5},
        },
        "two_bank": {
            "method": {"name": "cmsf", "constraint": "two_bank", "bank_size": 16, "labeled_bank_size": 8, "k": 2},
            "labels": {"fraction": 0.5},
        },
        "shuffled_groups": {"batch_norm": {"groups": 2, "shuffle": True}},
        "fp16": {"precision": "fp16", "method": {"name": "byol_asym", "bank_size": 16}},
        "frzproto": {"method": {"name": "frzproto"}},
        "xent_dropout": {"method": {"name": "xent", "dropout": 0.5}},
    }


CASES = list(cases(Path("anything")))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_stopped_again_and_again_it_ends_bit_equal(
    case: str, clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = make_config(clips, **cases(flow_weights)[case])
    assert run_training(chosen, tmp_path / "whole") == "finished"
    stop_at(monkeypatch, *STOPS)
    stops = finish(chosen, tmp_path / "resumed")
    assert stops >= 3
    assert differing(tmp_path / "whole", tmp_path / "resumed") == []


def test_the_comparison_sees_a_single_bit(clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, schedule={"epochs": 1})
    run_training(chosen, tmp_path / "one")
    places = result(tmp_path / "one")
    for prefix in ("state.online.encoder", "state.target.projector", "state.banks.main.column_target", "optimizer."):
        assert any(key.startswith(prefix) for key in places), prefix
    for place in ("state.banks.main.num_pushed.", "generator.", "random.0.torch.", "progress.step."):
        assert place in places
    run_training(make_config(clips, schedule={"epochs": 1}, seed=1), tmp_path / "other")
    assert "state.banks.main.column_target." in differing(tmp_path / "one", tmp_path / "other")


@pytest.mark.slow
def test_the_number_of_threads_does_not_depend_on_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    used: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", used.append)
    for workers in (0, 2, 7):
        run_module.set_threads(RuntimeConfig(workers=workers))
    run_module.set_threads(RuntimeConfig(), recorded=3)  # a resumed run goes on as it began, on any machine
    run_module.set_threads(RuntimeConfig(threads=5), recorded=3)
    assert used == [4, 4, 4, 3, 5]


def test_a_resumed_run_has_the_threads_that_it_began_with(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two settings that differ in workers and cores, threads left to the run: the same bits."""
    before = torch.get_num_threads()
    default = {"threads": 0, "workers": 0}
    try:
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(4)))
        run_training(make_config(clips, runtime=default), tmp_path / "whole")
        assert torch.get_num_threads() == 2
        with monkeypatch.context() as patch:
            stop_at(patch, 3)
            run_training(make_config(clips, runtime=default), tmp_path / "run")
        monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # another machine
        run_training(make_config(clips, runtime={"threads": 0, "save_minutes": 3.0}), tmp_path / "run")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert differing(tmp_path / "whole", tmp_path / "run") == []
    assert "threads so far" not in caplog.text


def test_unreadable_clips_are_counted_over_all_starts_of_a_run(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of 21 clips fails in every epoch: above the limit of 1% when 40 of 42 were read, 6 in the last start."""
    monkeypatch.setattr(loader_module, "MIN_CLIPS_SEEN", 40)
    store = tmp_path / "clips"
    shutil.copytree(clips, store)
    (store / "rgb" / f"{open_clips(store).select('1', 'train')[0].video_id}.mp4").write_bytes(b"broken")
    config = make_config(store, schedule={"epochs": 2}, batch_size=3)
    for stop in (4, 8, 12):
        with monkeypatch.context() as patch:
            stop_at(patch, stop)
            assert run_training(config, tmp_path / "run") == "stopped"
    for _ in range(3):
        with pytest.raises(RuntimeError, match="clips could not be read"):
            run_training(config, tmp_path / "run")


def test_the_number_of_workers_does_not_change_the_result(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_training(make_config(clips, schedule={"epochs": 1}), tmp_path / "none")
    stop_at(monkeypatch, 3)
    with_worker = make_config(clips, schedule={"epochs": 1}, runtime={"workers": 1})
    assert run_training(with_worker, tmp_path / "one") == "stopped"
    assert run_training(with_worker, tmp_path / "one") == "finished"
    assert differing(tmp_path / "none", tmp_path / "one") == []


def test_auto_workers_change_no_result_and_are_recorded(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_training(make_config(clips, schedule={"epochs": 1}), tmp_path / "none")
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(2))
    run_training(make_config(clips, schedule={"epochs": 1}, runtime={"workers": "auto"}), tmp_path / "auto")
    assert differing(tmp_path / "none", tmp_path / "auto") == []
    recorded = [json.loads((tmp_path / run / "environment.jsonl").read_text())["workers"] for run in ("none", "auto")]
    assert recorded == [0, 1]


@pytest.mark.slow
def test_a_compiled_run_can_be_stopped_too(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled without a change of code (backend eager), for real compilation takes a minute."""
    run_training(make_config(clips), tmp_path / "plain")
    monkeypatch.setattr(build, "compile_", lambda module: module.compile(backend="eager"))
    stop_at(monkeypatch, 3)
    assert finish(make_config(clips, compile=True), tmp_path / "compiled") == 1
    assert differing(tmp_path / "plain", tmp_path / "compiled") == ["config.compile."]


def test_asked_to_stop_while_it_is_being_built_it_stops_at_once(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_and_build(chosen: TrainConfig, group: DistributedContext) -> build.TrainComponents:
        signal.raise_signal(signal.SIGTERM)
        return build.build_components(chosen, group)

    monkeypatch.setattr(run_module, "build_components", stop_and_build)
    assert run_training(make_config(clips), tmp_path / "run") == "stopped"
    assert not (tmp_path / "run").exists()
    monkeypatch.undo()
    assert run_training(make_config(clips), tmp_path / "run") == "finished"


def test_stopped_in_its_last_step_a_run_still_has_its_summary(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 10)
    assert finish(make_config(clips), tmp_path / "run") == 1
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["last"]["loss"] == read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["loss"]
    assert summary["progress"]["epoch"] == 2 and (tmp_path / "run" / summary["checkpoint"]).is_file()


def test_handlers_are_given_back(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGTERM)
    stop_at(monkeypatch, 1)
    assert run_training(make_config(clips), tmp_path / "run") == "stopped"
    assert signal.getsignal(signal.SIGTERM) is before
    index = json.loads((tmp_path / "run" / "checkpoints" / "index.json").read_text())
    assert [(entry["step"], entry["batch"]) for entry in index] == [(1, 1)]


def test_training_draws_nothing_from_the_random_numbers_of_others(clips: Path, tmp_path: Path) -> None:
    run_training(make_config(clips, schedule={"epochs": 1}), tmp_path / "one")
    torch.rand(7)
    run_training(make_config(clips, schedule={"epochs": 1}), tmp_path / "other")
    assert differing(tmp_path / "one", tmp_path / "other") == []


def test_a_run_goes_on_with_another_decoder(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("decord", reason="decord has no wheel for this machine")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    assert run_training(make_config(clips), whole) == "finished"
    read: list[list[int]] = []
    real = DecordReader.read_rgb

    def read_rgb(self: DecordReader, numbers: Sequence[int]) -> Frames:
        read.append(list(numbers))
        return real(self, numbers)

    monkeypatch.setattr(DecordReader, "read_rgb", read_rgb)
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        assert run_training(make_config(clips), stopped) == "stopped" and not read
    assert run_training(make_config(clips, runtime={"decoder": "decord"}), stopped) == "finished"
    assert len(read) == 4 * (2 * STEPS_PER_EPOCH - 3)  # four videos in every step that was left
    assert differing(whole, stopped) == []
