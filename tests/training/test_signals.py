"""Signals and kills as job schedulers send them, to processes of their own."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.cli import INTERRUPTED as EARLY_INTERRUPTED
from covid_cmsf.exit_codes import INTERRUPTED
from covid_cmsf.models import load_encoder
from covid_cmsf.training import guides, loop
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from tests.training.command import Command, write_config_file
from tests.training.factories import differing, make_config

ROOT = Path(__file__).resolve().parents[2]
KILLS = 50  # promise 1
MOST_FURTHER_STEPS = 2  # of promise 5: one that is running, and one whose metrics are being written


def steps(folder: Path) -> int:
    lines = read_metrics(folder / "metrics.jsonl")
    return lines[-1]["step"] if lines else 0


@pytest.fixture(scope="module")
def whole(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run that nobody disturbs."""
    folder = tmp_path_factory.mktemp("whole")
    assert run_training(make_config(clips, encoder="s3d_tiny"), folder) == "finished"
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_saves_and_exits_with_75_and_the_same_command_continues(
    number: signal.Signals, clips: Path, whole: Path, tmp_path: Path
) -> None:
    chosen, folder, log = make_config(clips, encoder="s3d_tiny"), tmp_path / "run", tmp_path / "log"
    args = ["train", write_config_file(chosen, tmp_path / "run.yaml"), "--out", folder]
    command = Command(*args, log=log)
    command.until(lambda: steps(folder) >= 2)
    command.signal(number)
    at_most = steps(folder) + MOST_FURTHER_STEPS  # read after the signal: a busy machine may have got further
    assert command.end() == INTERRUPTED, command.said()
    assert steps(folder) <= at_most
    assert "stopped at step" in command.said() and "the same command resumes" in command.said()
    assert 2 <= steps(folder) < 10
    assert Command(*args, log=log).end() == 0, log.read_text()
    assert differing(whole, folder) == []
    assert "resuming at epoch" in (folder / "log.txt").read_text()


@pytest.mark.parametrize("function", ["forward_backward", "update", "log_metrics"])
def test_the_step_in_which_a_signal_comes_is_the_last_one(
    function: str, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever in the third of ten steps it comes, the third is completed and saved, once, and none follows."""
    chosen, calls, saved = make_config(clips), [], []
    real, save = getattr(loop, function), Checkpoints.save

    def signal_in_step_3(*arguments: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments, **options)

    def save_and_count(*arguments: Any, **options: Any) -> Path:
        saved.append(options["step"])
        return save(*arguments, **options)

    monkeypatch.setattr(loop, function, signal_in_step_3)
    monkeypatch.setattr(Checkpoints, "save", save_and_count)
    assert run_training(chosen, tmp_path / "run") == "stopped"
    assert len(calls) == steps(tmp_path / "run") == 3 and saved == [3]


def test_a_signal_does_not_wait_for_the_whole_cache_of_a_guide(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    embedded: list[int] = []

    def embed_and_signal(*arguments: Any, **options: Any) -> torch.Tensor:
        embedded.append(1)
        if len(embedded) == 2:
            signal.raise_signal(signal.SIGTERM)
        return real(*arguments, **options)

    real = guides._embed_batch
    chosen = make_config(
        clips,
        method={"name": "cmsf", "bank_size": 16, "k": 2},
        guides=[{"weights": str(flow_weights), "modality": "flow", "cache": "views"}],
    )
    with monkeypatch.context() as patch:
        patch.setattr(guides, "_embed_batch", embed_and_signal)
        assert run_training(chosen, tmp_path / "run") == "stopped"
    assert len(embedded) == 2  # of 21, for 4 views of 21 videos in batches of 4
    assert run_training(chosen, tmp_path / "run") == "finished"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_during_the_imports_exits_with_75(number: signal.Signals, tmp_path: Path) -> None:
    """`torch` is replaced by a module that sends the signal while it is being imported."""
    (tmp_path / "torch.py").write_text(f"import os, time\nos.kill(os.getpid(), {int(number)})\ntime.sleep(3600)\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "covid_cmsf", "train", "infonce"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900, env=environment, cwd=tmp_path)
    assert ended.returncode == INTERRUPTED == EARLY_INTERRUPTED, ended.stderr
    assert ended.stderr == "interrupted; run the same command to resume\n"


@pytest.mark.slow
def test_killed_at_any_moment_a_checkpoint_is_sound_and_the_end_is_the_same(clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, schedule={"epochs": 60}, runtime={"save_minutes": 1e-9, "keep_every_epochs": 20})
    folder, log, rng = tmp_path / "run", tmp_path / "log", random.Random(0)
    args = ["train", write_config_file(chosen, tmp_path / "run.yaml"), "--out", folder]
    checkpoints, had_one = Checkpoints(folder / "checkpoints"), False
    for _ in range(KILLS):
        command = Command(*args, log=log)
        before, wanted = steps(folder), rng.randint(0, 2) if checkpoints.last.exists() else 1
        while steps(folder) < before + wanted:
            assert command.process.is_alive(), command.said()
            command.process.join(0.01)
        command.process.join(rng.uniform(0, 0.1))
        assert command.process.is_alive(), command.said()
        command.signal(signal.SIGKILL)
        command.process.join()
        has_one = checkpoints.load() is not None
        assert has_one or not had_one  # the first one is written in the background: a kill may come before it
        had_one = has_one
        if checkpoints.last.is_symlink():  # the link comes after the file and the index
            load_encoder(checkpoints.last)
    assert had_one
    command = Command(*args, log=log)
    assert command.end() == 0, log.read_text()
    assert run_training(chosen, tmp_path / "whole") == "finished"
    assert differing(tmp_path / "whole", folder) == []
    assert [path.name for path in (folder / "checkpoints").glob(".*.tmp")] == []
