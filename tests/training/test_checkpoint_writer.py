"""Checkpoints that a thread writes: of the moment of the call; errors end the run; the last one is waited for."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.training.checkpoint_writer import CheckpointWriter, copied
from covid_cmsf.training.checkpoints import Checkpoints
from covid_cmsf.training.run import run_training
from tests.training.factories import differing, make_config

AT: dict[str, Any] = {"epoch": 0, "batch": 1, "kept": False, "keep": 1}


class Held(Checkpoints):
    """Checkpoints that are written when `go` is set."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.go = threading.Event()

    def save(self, values: Any, **options: Any) -> Path:
        assert self.go.wait(timeout=60)
        return super().save(values, **options)


def test_a_checkpoint_holds_what_was_there_when_it_was_asked_for(tmp_path: Path) -> None:
    held, weight = Held(tmp_path), torch.ones(3)
    with CheckpointWriter(held, in_background=True) as writer:
        writer.save({"state": {"weight": weight}, "list": [weight, 1], "step": 1}, step=1, **AT)
        assert not held.entries(), "it waited"
        weight += 1  # the next step
        writer.check()
        held.go.set()
    values = held.load()
    assert values is not None and values["step"] == 1, "leaving the block did not wait"
    assert torch.equal(values["state"]["weight"], torch.ones(3)) and torch.equal(values["list"][0], torch.ones(3))


def test_copies_are_equal_and_share_no_memory() -> None:
    layout = torch.randn(2, 3, 4, 5, 6).contiguous(memory_format=torch.channels_last_3d)
    values = {"a": [(layout, None)], 3: {"b": torch.tensor(7)}, "text": "x"}
    found = copied(values)
    assert found.keys() == values.keys() and type(found["a"][0]) is tuple and found["text"] == "x"
    assert torch.equal(found["a"][0][0], layout) and found["a"][0][0].stride() == layout.stride()
    assert found["a"][0][0].data_ptr() != layout.data_ptr() and found[3]["b"] == 7


def test_an_error_of_the_thread_is_raised_by_the_next_call_or_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    broken = Checkpoints(tmp_path / "file")  # not a folder
    writer = CheckpointWriter(broken, in_background=True)
    for call in (writer.wait, lambda: writer.save({}, step=2, **AT)):
        writer.save({}, step=1, **AT)
        with pytest.raises(FileExistsError):
            call()
    writer.save({}, step=1, **AT)
    assert writer._writing is not None and writer._writing.exception() is not None
    with pytest.raises(FileExistsError):
        writer.check()
    with pytest.raises(FileExistsError), writer:
        writer.save({}, step=1, **AT)
    with pytest.raises(ZeroDivisionError), CheckpointWriter(broken, in_background=True) as writer:
        writer.save({}, step=1, **AT)
        raise ZeroDivisionError
    assert "could not be written either" in caplog.text


def test_a_run_ends_the_same_with_and_without_the_thread(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    real = Checkpoints.save

    def save(checkpoints: Checkpoints, *args: Any, **options: Any) -> Path:
        threads.append(threading.current_thread() is threading.main_thread())
        return real(checkpoints, *args, **options)

    monkeypatch.setattr(Checkpoints, "save", save)
    for background in (False, True):
        runtime = {"background_checkpoints": background, "save_minutes": 1e-9}
        chosen = make_config(clips, schedule={"epochs": 1}, runtime=runtime)
        assert run_training(chosen, tmp_path / str(background)) == "finished"
    assert differing(tmp_path / "False", tmp_path / "True") == []
    assert threads == 6 * [True] + 6 * [False]


def test_a_run_whose_checkpoint_cannot_be_written_ends_with_the_error(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Checkpoints, "save", full)
    with pytest.raises(OSError, match="No space left"):
        run_training(make_config(clips), tmp_path / "run")
    assert not (tmp_path / "run" / "summary.json").exists()
