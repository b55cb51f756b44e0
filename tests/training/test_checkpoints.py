"""Checkpoints: whole or not there, the newest sound one is used, the one before is never lost."""

import json
import logging
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.models.checkpoints.torch_file import save_to
from covid_cmsf.training import checkpoints as module
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.run import run_training
from tests.factories import file_size_limit
from tests.training.factories import differing, finish, make_config, stop_at


def save(checkpoints: Checkpoints, step: int, *, epoch: int = 0, kept: bool = False, keep: int = 3) -> Path:
    values = {"value": torch.full((1000,), float(step)), "epoch": epoch, "encoder": {}, "state": {}}
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


def record_flushes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int | str]]:
    """Return a list that grows with each fsync (inode, bytes) and each rename (inode, new name)."""
    events: list[tuple[str, int, int | str]] = []
    fsync, replace = os.fsync, Path.replace

    def record_fsync(descriptor: int) -> None:
        found = os.fstat(descriptor)
        events.append(("flush", found.st_ino, 0 if stat.S_ISDIR(found.st_mode) else found.st_size))
        fsync(descriptor)

    def record_replace(path: Path, target: Path) -> Path:
        events.append(("rename", path.lstat().st_ino, target.name))
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", record_fsync)
    monkeypatch.setattr(Path, "replace", record_replace)
    return events


def test_file_and_folder_are_flushed_before_the_index_lists_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut after any of these calls leaves a whole checkpoint, or an index without it."""
    events = record_flushes(monkeypatch)
    path = save(Checkpoints(tmp_path), 1)
    index, link, folder = tmp_path / "index.json", tmp_path / "last.pt", tmp_path.stat().st_ino
    assert events == [
        ("flush", path.stat().st_ino, path.stat().st_size),
        ("rename", path.stat().st_ino, path.name),
        ("flush", folder, 0),
        ("flush", index.stat().st_ino, index.stat().st_size),
        ("rename", index.stat().st_ino, "index.json"),
        ("flush", folder, 0),
        ("rename", link.lstat().st_ino, "last.pt"),
        ("flush", folder, 0),
    ]


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


def test_a_full_disk_is_an_error_and_leaves_the_previous_checkpoint(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    before = {path.name for path in tmp_path.iterdir()}
    with file_size_limit(1000), pytest.raises(OSError, match=r"File too large: .*step-00000002-epoch-0000\.pt"):
        save(checkpoints, 2)
    assert loaded_step(checkpoints) == 1 and {path.name for path in tmp_path.iterdir()} == before


def test_torch_save_to_a_full_disk_says_so() -> None:
    # Buffered, as it is opened for a checkpoint: then torch.save raises an error of its own.
    file = Path("/dev/full").open("wb")  # noqa: SIM115 (closing it fails, too)
    with pytest.raises(OSError, match="No space left on device"):
        save_to(file, {"value": torch.ones(1000)})
    with suppress(OSError):  # what is left in the buffer
        file.close()


def test_what_a_kill_left_behind_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".0123456789abcdef.tmp").write_bytes(b"half a checkpoint")
    save(Checkpoints(tmp_path), 1)
    assert list(tmp_path.glob(".*.tmp")) == []


LOST_INDEXES = {"gone": None, "empty": "", "cut": '[{"file": "step', "{}": "{}", "[]": "[]", "null": "null"}
LOST_INDEXES["outside"] = json.dumps([{"file": "../x.pt", "sha256": "", "epoch": 0, "batch": 0, "step": 0, "kept": 0}])


def lose_index(folder: Path, text: str | None) -> None:
    (folder / "index.json").unlink()
    if text is not None:
        (folder / "index.json").write_text(text)


@pytest.mark.parametrize("text", LOST_INDEXES.values(), ids=LOST_INDEXES)
def test_a_lost_index_is_made_anew_and_no_checkpoint_is_lost(
    text: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, outside = tmp_path / "checkpoints", tmp_path / "x.pt"
    outside.write_text("not ours")
    for step in (1, 2, 3):
        save(Checkpoints(folder), step, kept=step == 1)
    before = Checkpoints(folder).entries()
    lose_index(folder, text)
    checkpoints = Checkpoints(folder)
    with caplog.at_level(logging.WARNING):
        assert loaded_step(checkpoints) == 3
    assert "step-00000003" in caplog.text
    assert [asdict(entry) | {"batch": 0} for entry in checkpoints.entries()] == [
        asdict(entry) | {"batch": 0} for entry in before
    ]
    save(checkpoints, 4)
    assert [entry.step for entry in Checkpoints(folder).entries()] == [1, 3, 4]  # 2 was neither kept nor new
    assert outside.is_file()


def test_damaged_files_that_the_index_does_not_list_are_never_removed(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    flip_a_bit(save(checkpoints, 1))
    lose_index(tmp_path, None)
    with pytest.raises(ValueError, match="no checkpoint in .* is valid; copy one back"):
        Checkpoints(tmp_path).load()
    lost = Checkpoints(tmp_path)
    for step in (2, 3, 4):
        save(lost, step)
    assert [entry.step for entry in lost.entries()] == [3, 4]
    assert sorted(path.name[:13] for path in tmp_path.glob("step-*")) == [f"step-0000000{step}" for step in (1, 3, 4)]


def test_an_index_whose_files_are_all_gone_is_an_error(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 1).unlink()
    with pytest.raises(ValueError, match="no checkpoint in .* is valid"):
        Checkpoints(tmp_path).load()


def test_a_finished_run_whose_checkpoints_are_gone_is_not_trained_again(clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, schedule={"epochs": 1})
    run_training(chosen, tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    metrics = (tmp_path / "metrics.jsonl").read_bytes()
    with pytest.raises(ValueError, match="finished run whose checkpoints are gone"):
        run_training(chosen, tmp_path)
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics


@pytest.mark.slow
def test_a_run_whose_index_is_lost_ends_the_same(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = make_config(clips)
    run_training(chosen, tmp_path / "whole")
    with monkeypatch.context() as patch:
        stop_at(patch, 3, 7)
        assert run_training(chosen, tmp_path / "run") == run_training(chosen, tmp_path / "run") == "stopped"
    (tmp_path / "run" / "checkpoints" / "index.json").write_text("{}")
    finish(chosen, tmp_path / "run")
    assert differing(tmp_path / "whole", tmp_path / "run") == []


@pytest.mark.parametrize("killed_in", ["_write_index", "_link"])
def test_a_kill_after_the_last_checkpoint_leaves_a_run_that_ends_with_it(
    killed_in: str, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = make_config(clips)
    run_training(chosen, tmp_path / "whole")
    real = getattr(Checkpoints, killed_in)

    def kill_at_the_end(checkpoints: Checkpoints, argument: Any) -> None:
        if (checkpoints.folder / "step-00000010-epoch-0002.pt").exists():
            raise KeyboardInterrupt
        real(checkpoints, argument)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Checkpoints, killed_in, kill_at_the_end)
        run_training(chosen, tmp_path / "run")
    assert (tmp_path / "run" / "checkpoints" / "last.pt").resolve().name == "step-00000005-epoch-0001.pt"
    assert run_training(chosen, tmp_path / "run") == "finished"
    assert differing(tmp_path / "whole", tmp_path / "run") == []
    listed = json.loads((tmp_path / "run" / "checkpoints" / "index.json").read_text())
    assert listed[-1]["file"] == "step-00000010-epoch-0002.pt"


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
    with file_size_limit(50_000), pytest.raises(OSError, match=r"File too large: .*/checkpoints/step-"):
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
