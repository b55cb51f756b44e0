"""Several processes share an extraction: the same bytes as from one, one that is killed, one that fails."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor

from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.devices import choose_devices
from covid_cmsf.evaluation.features import extract as extract_module
from covid_cmsf.evaluation.features import processes
from covid_cmsf.evaluation.features.extract import extract_features
from tests.evaluation.factories import SyntheticClips, small_encoder

TWO = [torch.device("cpu")] * 2


class KilledOnce(SyntheticClips):
    """The first process that reads a seventh video, after its first shard of five, is killed there."""

    def __init__(self, marker: Path) -> None:
        super().__init__()
        self.marker, self.num_read = marker, 0

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        self.num_read += 1
        if self.num_read == 7:
            with suppress(FileExistsError), self.marker.open("x"):
                os.kill(os.getpid(), signal.SIGKILL)
        return super().read_raw(record, modality, frame_indices)


@pytest.mark.slow
def test_two_processes_write_the_bytes_of_one_also_when_one_of_them_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract_module, "SHARD_SIZE", 5)
    model, clips = small_encoder()[1], KilledOnce(tmp_path / "killed")
    extract_features(model, SyntheticClips(), tmp_path / "one")
    with pytest.raises(RuntimeError, match="was killed by signal 9; the same command resumes"):
        extract_features(model, clips, tmp_path / "two", device=TWO)
    assert not (tmp_path / "two").exists() and not multiprocessing.active_children()
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / ".two.shards").glob("*.safetensors")}
    assert 1 <= len(kept) < 5
    seen: list[int] = []
    extract_features(model, clips, tmp_path / "two", device=TWO, on_video=lambda: seen.append(1))
    assert len(seen) == len(clips.records)
    assert (tmp_path / "two").read_bytes() == (tmp_path / "one").read_bytes()


def test_an_error_in_a_process_is_sent_and_raised_with_its_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(shards: Sequence[int], device: torch.device, on_video: Callable[[], None]) -> None:
        on_video()
        raise ValueError("shard 1 is bad")

    monkeypatch.setattr(processes, "_exit_with_parent", lambda: None)  # here it runs in this process
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    receiver, sender = multiprocessing.Pipe(duplex=False)
    processes._run(fail, [1], TWO[0], 1, sender)
    seen: list[int] = []
    processes._receive(receiver, {}, lambda: seen.append(1))
    with pytest.raises(RuntimeError, match="shard 1 is bad"):
        processes._receive(receiver, {}, lambda: seen.append(1))
    assert seen == [1]


def test_a_process_per_gpu_unless_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_devices("cpu") == [torch.device("cpu")] and choose_devices("cpu", 2) == TWO
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpus = [torch.device("cuda", number) for number in range(2)]
    assert choose_devices("auto") == choose_devices("cuda") == gpus
    assert choose_devices("cuda", 3) == [*gpus, gpus[0]] and choose_devices("cuda:1") == [gpus[1]]
