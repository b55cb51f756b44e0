"""The folder of a run: settings as they were resolved, metrics, TensorBoard, versions, what the screen said."""

import json
import logging
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from covid_cmsf.config import load_config
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.monitor import MetricsWriter, drop_after, format_metrics, last_metrics, read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.run_dir import config_to_dict, git_state, lock_dir, write_config
from tests.training.command import Command, write_config_file
from tests.training.factories import finish, make_config, stop_at


def test_the_resolved_settings_can_be_read_back(clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, method={"name": "msf", "bank_size": 16, "k": "all"}, optimizer={"lr": 1e-7})
    write_config(tmp_path, chosen)
    assert load_config(TrainConfig, tmp_path / "config.yaml") == chosen
    assert config_to_dict(chosen)["schedule"]["milestones"] == [80]  # defaults are written out too


def test_metrics_are_read_up_to_a_line_that_was_cut(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_metrics(path) == [] and last_metrics(path) is None
    path.write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert [line["step"] for line in read_metrics(path)] == [1, 2]
    drop_after(path, 1)
    assert path.read_text() == '{"step": 1}\n'


def test_a_bad_line_of_metrics_drops_no_other(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n{"step": 2, "lo\n\xff\n7\n{"loss": 1}\n{"step": 3}\n{"st')
    assert [line["step"] for line in read_metrics(path)] == [1, 3]
    assert "metrics.jsonl: 4 damaged lines are left out, the first: line 2" in caplog.text
    drop_after(path, 3)
    assert path.read_text() == '{"step": 1}\n{"step": 3}\n'


def test_metrics_that_lost_their_end_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 10}\n{"step": 20}\n{"step": 25}\n{"step": 30}\n{"step')
    MetricsWriter(tmp_path, step=39, interval=10).close()
    assert caplog.text == ""
    MetricsWriter(tmp_path, step=40, interval=10).close()
    assert "metrics.jsonl: the metrics of steps 31 to 40 are missing" in caplog.text


def test_metrics_are_named_in_full(clips: Path) -> None:
    text = format_metrics({"loss": 0.5, "purity": 0.7, "purity_free": 0.22})
    assert text == "loss 0.500  purity 0.70  unconstrained purity 0.22"
    assert format_metrics({"bank_filled": 96.0}) == "no loss yet, bank entries 96"


@pytest.mark.parametrize("changes", [{"split": "9"}, {"encoder": "s3dd"}])
def test_a_failed_start_leaves_nothing_behind(clips: Path, tmp_path: Path, changes: dict[str, str]) -> None:
    with pytest.raises(ValueError):
        run_training(make_config(clips, **changes), tmp_path / "runs" / "deep" / "run")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError):
        run_training(make_config(clips, **changes), tmp_path / "mine")
    assert (tmp_path / "mine").is_dir() and not (tmp_path / "mine" / ".lock").exists()


def test_a_lock_that_was_removed_meanwhile_is_taken_anew(tmp_path: Path) -> None:
    with lock_dir(tmp_path):
        assert (tmp_path / ".lock").is_file()
        with pytest.raises(ValueError, match="another process is writing"), lock_dir(tmp_path):
            pass
        assert (tmp_path / ".lock").is_file()
    assert not (tmp_path / ".lock").exists()


def test_what_is_left_out_and_when_the_loss_starts_is_said_once(
    clips: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    method = {"name": "msf", "bank_size": 16, "bank_warmup": 10}
    with caplog.at_level(logging.INFO):
        run_training(make_config(clips, method=method), tmp_path / "run")
    assert caplog.text.count("1 of 21 videos, others every epoch, fill no batch of 4") == 1
    assert caplog.text.count("bank 0/10: the loss starts at step 3, when it is filled") == 1
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert ["loss" in line for line in lines] == [False, False, *[True] * 8]


def test_metrics_go_on_after_the_step_of_the_checkpoint(tmp_path: Path) -> None:
    for start, steps in ((0, (1, 2, 3)), (2, (3, 4))):
        metrics = MetricsWriter(tmp_path, step=start, interval=1)
        for step in steps:
            metrics.write(step, {"start": start})
        metrics.close()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    assert [(line["step"], line["start"]) for line in lines] == [(1, 0), (2, 0), (3, 2), (4, 2)]


def test_tensorboard_has_every_step_once_though_the_run_was_stopped(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_at(monkeypatch, 3, 7)
    finish(make_config(clips, runtime={"loggers": ["tensorboard"]}), tmp_path / "run")
    # File by file: TensorBoard orders them by name, which for starts in one process and second is not their order.
    events = []
    for path in (tmp_path / "run" / "tensorboard").iterdir():
        board = EventAccumulator(str(path))
        board.Reload()
        events += board.Scalars("loss")
    events.sort(key=lambda event: event.step)
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [event.step for event in events] == list(range(1, 11))
    assert [event.value for event in events] == pytest.approx([line["loss"] for line in lines])


def test_the_folder_tells_how_the_run_came_about(clips: Path, tmp_path: Path) -> None:
    config = write_config_file(make_config(clips, schedule={"epochs": 1}), tmp_path / "run.yaml")
    command = Command("train", config, "--out", tmp_path / "run", log=tmp_path / "log")
    assert command.end() == 0, command.said()
    text = (tmp_path / "run" / "log.txt").read_text()
    for message in ("infonce on rgb, 1 epochs, 21 videos, random weights", "epoch 1 of 1 done", "loss", "finished: "):
        assert message in text, message
    start = json.loads((tmp_path / "run" / "environment.jsonl").read_text())
    assert start["command"][1:3] == ["train", str(config)] and start["device"] == "cpu" and start["from_step"] == 0
    assert {"torch", "numpy", "python", "covid-cmsf"} <= start["versions"].keys() and start["git"] is not None


def test_outside_of_a_checkout_there_is_no_git_state(tmp_path: Path) -> None:
    assert git_state(tmp_path) is None


def test_the_bar_shows_loss_purity_and_speed() -> None:
    metrics = {"loss": 0.5234, "purity": 0.714, "effective_rank": 9.84, "samples_per_s": 412.3, "epoch": 3}
    assert format_metrics(metrics) == "loss 0.523  purity 0.71  rank 9.8  clips/s 412"
    assert format_metrics({}) == ""
