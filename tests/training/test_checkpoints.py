"""Checkpoints: whole or not there, the newest sound one is used, the one before is never lost."""

import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.training import checkpoints as module
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.run import run_training
from tests.training.factories import differing, finish, make_config, stop_at


def save(checkpoints: Checkpoints, step: int, *, epoch: int = 0, kept: bool = False, keep: int = 3) -> Path:
    values = {"value": torch.full((3,), float(step)), "epoch": epoch}
    return checkpoints.save(values, epoch=epoch, batch=step, step=step, kept=kept, keep=keep)


def loaded_step(checkpoints: Checkpoints) -> float:
    values = checkpoints.load()
    assert values is not None
    return float(values["value"][0])


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def flip_a_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [truncate, flip_a_bit, empty, Path.unlink]


def test_a_run_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "nowhere").load() is None and Checkpoints(tmp_path).entries() == []


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_newest_is_noticed_and_the_one_before_is_used(
    damage: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    damage(save(checkpoints, 2))
    with caplog.at_level(logging.WARNING):
        assert loaded_step(checkpoints) == 1
    assert "step-00000002" in caplog.text and "trying the one before it" in caplog.text
    damage(tmp_path / checkpoints.entries()[0].file)
    with pytest.raises(ValueError, match="no checkpoint in .* is valid"):
        checkpoints.load()


def test_after_falling_back_the_sound_one_stays(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 5)
    flip_a_bit(save(checkpoints, 10))
    save(checkpoints, 7)  # the run went on from 5
    assert [entry.step for entry in checkpoints.entries()] == [5, 7]
    assert {path.name for path in tmp_path.glob("step-*")} == {entry.file for entry in checkpoints.entries()}


def test_the_two_newest_and_the_last_kept_ones_stay(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for step in range(1, 13):
        save(checkpoints, step, kept=step % 3 == 0, keep=2)
        files = {entry.file for entry in checkpoints.entries()}
        assert files == {path.name for path in tmp_path.glob("step-*.pt")}
        assert checkpoints.last.resolve().name == checkpoints.entries()[-1].file
    assert [entry.step for entry in checkpoints.entries()] == [9, 11, 12]
    assert torch.load(checkpoints.last, weights_only=True)["value"][0] == 12


def test_a_kill_between_file_and_index_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 5)  # stopped after the last batch of an epoch ...
    with monkeypatch.context() as patch:
        patch.setattr(module, "write_text_atomic", _killed)
        with pytest.raises(KeyboardInterrupt):
            save(checkpoints, 5, epoch=1)  # ... whose end comes in the same step
    assert loaded_step(checkpoints) == 5
    save(checkpoints, 5, epoch=1)
    values = checkpoints.load()
    assert values is not None and values["epoch"] == 1


def test_a_full_disk_is_an_error_and_leaves_the_previous_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    before = {path.name for path in tmp_path.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", _disk_full)
        with pytest.raises(OSError, match="No space left"):
            save(checkpoints, 2)
    assert loaded_step(checkpoints) == 1 and {path.name for path in tmp_path.iterdir()} == before


def test_what_a_kill_left_behind_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".0123456789abcdef.tmp").write_bytes(b"half a checkpoint")
    save(Checkpoints(tmp_path), 1)
    assert list(tmp_path.glob(".*.tmp")) == []


def test_a_damaged_index_is_an_error(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1)
    (tmp_path / "index.json").write_text('[{"file": "step')
    with pytest.raises(ValueError, match="index.json is damaged"):
        Checkpoints(tmp_path).load()


@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_newest_checkpoint_is_damaged_ends_the_same(
    damage: Any, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = make_config(clips)
    run_training(chosen, tmp_path / "whole")
    stop_at(monkeypatch, 3, 7)
    assert run_training(chosen, tmp_path / "run") == run_training(chosen, tmp_path / "run") == "stopped"
    damage((tmp_path / "run" / "checkpoints" / "last.pt").resolve())
    monkeypatch.undo()
    finish(chosen, tmp_path / "run")
    assert differing(tmp_path / "whole", tmp_path / "run") == []


@pytest.mark.slow
def test_a_full_disk_during_a_run_leaves_it_where_it_was(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = make_config(clips)
    run_training(chosen, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 3)
        run_training(chosen, tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", _disk_full)
        with pytest.raises(OSError, match="No space left"):
            run_training(chosen, tmp_path / "run")
    assert finish(chosen, tmp_path / "run") == 0
    assert differing(tmp_path / "whole", tmp_path / "run") == []


@pytest.mark.slow
def test_checkpoints_of_every_n_epochs_stay(clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, schedule={"epochs": 7}, runtime={"keep_every_epochs": 2, "keep": 2})
    run_training(chosen, tmp_path)
    entries = json.loads((tmp_path / "checkpoints" / "index.json").read_text())
    assert [(entry["epoch"], entry["kept"]) for entry in entries] == [(4, True), (6, True), (7, False)]


def _killed(*arguments: Any) -> None:
    raise KeyboardInterrupt


def _disk_full(values: Any, path: Path) -> None:
    Path(path).write_bytes(b"a part of it")
    raise OSError(errno.ENOSPC, "No space left on device")
