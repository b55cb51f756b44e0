"""`runtime.loggers`: none unless asked for; TensorBoard, and Weights & Biases offline."""

import os
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from covid_cmsf.config import load_config, validate
from covid_cmsf.training import loggers
from covid_cmsf.training.config import RuntimeConfig
from covid_cmsf.training.loggers import check_loggers, make_loggers
from covid_cmsf.training.monitor import MetricsWriter, read_metrics
from covid_cmsf.training.preflight import check_training
from tests.network_watch import run_watched
from tests.training.factories import finish, make_config, stop_at


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, ()),
        ({"tensorboard": False}, ()),
        ({"tensorboard": True}, ("tensorboard",)),
        ({"tensorboard": True, "loggers": ["wandb"]}, ("wandb", "tensorboard")),
        ({"tensorboard": True, "loggers": ["tensorboard"]}, ("tensorboard",)),
    ],
)
def test_the_setting_of_earlier_versions_is_understood(values: dict[str, object], expected: tuple[str, ...]) -> None:
    config = validate(RuntimeConfig, values, origin="a test")
    assert config.loggers == expected and "tensorboard" not in config.model_dump()
    assert values == {**values}, "the caller's values are left alone"


def test_loggers_are_set_on_the_command_line_and_wrong_ones_are_named() -> None:
    assert load_config(RuntimeConfig, None, ["loggers=[tensorboard, wandb]"]).loggers == ("tensorboard", "wandb")
    with pytest.raises(ValueError, match="loggers"):
        load_config(RuntimeConfig, None, ["loggers=[mlflow]"])
    with pytest.raises(ValueError, match=r"the setting is now loggers: \[tensorboard\]"):
        load_config(RuntimeConfig, None, ["tensorboard=often"])


def test_a_logger_that_is_not_installed_is_said_before_the_run(clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loggers, "find_spec", lambda name: None)
    (problem,) = check_training(make_config(clips, runtime={"loggers": ["wandb"]}))
    assert problem.message == "runtime.loggers: wandb is not installed: pip install 'covid-cmsf[wandb]'"
    assert check_loggers(["tensorboard"]) == []


class Recorder:
    """A logger that keeps what it is given."""

    def __init__(self) -> None:
        self.lines: list[tuple[int, dict[str, float]]] = []
        self.closed = False

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self.lines.append((step, dict(values)))

    def close(self) -> None:
        self.closed = True


def test_loggers_get_the_numbers_of_every_line(tmp_path: Path) -> None:
    recorder = Recorder()
    writer = MetricsWriter(tmp_path, step=0, interval=1, loggers=[recorder])
    writer.write(1, {"loss": 0.5, "note": "text"})
    writer.write(2, {"loss": 0.25})
    writer.close()
    assert recorder.lines == [(1, {"loss": 0.5}), (2, {"loss": 0.25})] and recorder.closed


def wandb_records(folder: Path) -> str:
    """Everything in the files of all starts, as text."""
    files = sorted((folder / "wandb").rglob("run-*.wandb"))
    return "".join(file.read_bytes().decode("latin-1") for file in files)


@pytest.mark.slow
def test_wandb_offline_has_the_metrics_of_a_run_that_was_stopped(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb")
    stop_at(monkeypatch, 3)
    finish(make_config(clips, runtime={"loggers": ["wandb", "tensorboard"]}), tmp_path / "run")
    starts = sorted(path.name for path in (tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(starts) == 2, "one per start"
    run_id = (tmp_path / "run" / "wandb" / "run-id.txt").read_text()
    assert all(name.endswith(run_id) for name in starts), "of one run"
    records = wandb_records(tmp_path / "run")
    assert records.count("effective_rank") >= 2 and "infonce" in records, "metrics and configuration"
    name = os.uname().nodename
    assert chr(len(name)) + name not in records and sys.executable not in records, "nothing of this machine"
    assert (tmp_path / "run" / "tensorboard").is_dir()
    assert len(read_metrics(tmp_path / "run" / "metrics.jsonl")) == 10


@pytest.mark.slow
def test_offline_nothing_is_sent_though_the_environment_asks_for_it(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    script = (
        "from pathlib import Path\nfrom covid_cmsf.training.loggers import make_loggers\n"
        f"(one,) = make_loggers(['wandb'], Path({str(tmp_path)!r}), step=0, config={{'a': 1}}, wandb_mode='offline')\n"
        "one.write(1, {'loss': 0.5})\none.close()"
    )
    with socket.create_server(("127.0.0.1", 0)) as server:  # wandb's own process is seen here only
        server.setblocking(False)
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        asked = {"WANDB_MODE": "online", "WANDB_API_KEY": "0" * 40, "WANDB_BASE_URL": address}
        ended = run_watched(script, folder=tmp_path, environment=asked)
        assert ended.code == 0 and ended.attempts == [], ended
        with pytest.raises(BlockingIOError):
            server.accept()
    assert len(list((tmp_path / "wandb").glob("offline-run-*"))) == 1 and "loss" in wandb_records(tmp_path)


def test_no_logger_is_made_unless_asked_for(tmp_path: Path) -> None:
    assert make_loggers([], tmp_path, step=0, config={}, wandb_mode="offline") == [] and not list(tmp_path.iterdir())
