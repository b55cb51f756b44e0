"""Decoded clips on a disk: the same frames, written once, continued after a kill, compared with their checksums."""

import multiprocessing
import os
import pickle
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from covid_cmsf.clips import Clips, ClipStore, decoded
from covid_cmsf.clips.decoded import DecodedClips, read_index, write_frames
from covid_cmsf.clips.records import ClipRecord

MODALITIES = ("rgb", "flow")


class Counting(ClipStore):
    """A store that counts what is decoded, and can't decode some videos."""

    broken: frozenset[str] = frozenset()
    limit = 10**9

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        self.count = getattr(self, "count", 0) + 1
        if self.count > self.limit:
            raise KeyboardInterrupt  # as a kill: nothing of ours handles it
        if record.video_id in self.broken:
            raise ValueError(f"{record.video_id} is damaged")
        return super().read_raw(record, modality, frame_indices)


@pytest.fixture
def counting(finished_store: Path) -> Counting:
    opened = Counting.open(finished_store)
    assert isinstance(opened, Counting)
    return opened


def assert_same_frames(clips: Clips, cached: Clips) -> None:
    for record in clips.records:
        for modality in MODALITIES:
            first, second = (one.read_raw(record, modality, [7, 0, 3, 3]) for one in (clips, cached))
            assert torch.equal(first, second) and first.stride() == second.stride()


def test_frames_are_those_of_the_store_and_decoded_once(counting: Counting, store: ClipStore, tmp_path: Path) -> None:
    first = DecodedClips(counting, counting.records, MODALITIES, folder=tmp_path)
    assert counting.count == 2 * len(counting.records)
    assert_same_frames(store, first)
    again = DecodedClips(counting, counting.records, MODALITIES, folder=tmp_path)
    assert_same_frames(store, again)
    assert counting.count == 2 * len(counting.records), "the second one decodes nothing"
    for name in Clips.__annotations__:
        assert getattr(first, name) == getattr(counting, name), name
    with pytest.raises(ValueError, match="asked for 20"):
        first.read_raw(counting.records[0], "rgb", [20])
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".jsonl", ".jsonl", ".u8", ".u8"]


def test_a_killed_one_is_continued_where_videos_are_listed(
    counting: Counting, store: ClipStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decoded, "SYNC_BYTES", 1)  # list every video at once
    counting.limit = 3
    with pytest.raises(KeyboardInterrupt):
        DecodedClips(counting, counting.records, MODALITIES, folder=tmp_path)
    index = next(tmp_path.glob("rgb-*.jsonl"))
    entries, is_complete = read_index(index)
    assert len(entries) == 3 and not is_complete
    with index.open("a") as lines:
        lines.write('{"video": "cut o')  # a line that was being written
    with index.with_suffix(".u8").open("ab") as data:
        data.write(b"frames that no line lists")
    counting.count, counting.limit = 0, 10**9
    cached = DecodedClips(counting, counting.records, MODALITIES, folder=tmp_path)
    assert counting.count == 2 * len(counting.records) - 3
    assert_same_frames(store, cached)
    undisturbed = DecodedClips(store, store.records, MODALITIES, folder=tmp_path / "undisturbed")
    assert undisturbed.modalities == MODALITIES
    for path in (tmp_path / "undisturbed").iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()


def test_a_flipped_bit_is_found_when_a_process_first_reads_the_video(store: ClipStore, tmp_path: Path) -> None:
    DecodedClips(store, store.records, ["rgb"], folder=tmp_path)
    path = next(tmp_path.glob("rgb-*.u8"))
    values = bytearray(path.read_bytes())
    values[-1] ^= 1
    path.write_bytes(values)
    cached = DecodedClips(store, store.records, ["rgb"], folder=tmp_path)
    assert torch.equal(cached.read_raw(store.records[0], "rgb", [0]), store.read_raw(store.records[0], "rgb", [0]))
    with pytest.raises(ValueError, match=rf"{path.name} is damaged at .*: delete it and {path.stem}.jsonl"):
        cached.read_raw(store.records[-1], "rgb", [0])


def test_what_a_file_has_lost_is_decoded_again(counting: Counting, store: ClipStore, tmp_path: Path) -> None:
    DecodedClips(counting, counting.records, MODALITIES, folder=tmp_path)
    path = next(tmp_path.glob("rgb-*.u8"))
    whole, lines = path.read_bytes(), path.with_suffix(".jsonl").read_bytes()
    for left, decoded_again in ((whole[:-1], 1), (None, len(counting.records))):  # cut, removed
        path.unlink()
        if left is not None:
            path.write_bytes(left)
        counting.count = 0
        assert_same_frames(store, DecodedClips(counting, counting.records, MODALITIES, folder=tmp_path))
        assert counting.count == decoded_again
        assert path.read_bytes() == whole and path.with_suffix(".jsonl").read_bytes() == lines


def test_replaced_videos_are_decoded_anew(finished_store: Path, tmp_path: Path) -> None:
    shutil.copytree(finished_store, tmp_path / "clips")
    store = ClipStore.open(tmp_path / "clips")
    DecodedClips(store, store.records, ["rgb"], folder=tmp_path / "decoded")
    os.utime(store.files(store.records[0], "rgb")[0])
    DecodedClips(store, store.records, ["rgb"], folder=tmp_path / "decoded")
    assert len(list((tmp_path / "decoded").glob("*.u8"))) == 2


def test_a_video_that_cannot_be_decoded_raises_as_without_a_cache(counting: Counting, tmp_path: Path) -> None:
    record = counting.records[1]
    counting.broken = frozenset([record.video_id])
    cached = DecodedClips(counting, counting.records, MODALITIES, folder=tmp_path)
    with pytest.raises(ValueError, match="is damaged"):
        cached.read_raw(record, "rgb", [0])
    assert cached.read_raw(counting.records[2], "rgb", [0]).shape[0] == 1


def test_workers_get_a_path_not_the_frames(store: ClipStore, tmp_path: Path) -> None:
    cached = DecodedClips(store, store.records, MODALITIES, folder=tmp_path)
    assert_same_frames(store, cached)  # now the files are mapped
    sent = pickle.dumps(cached)
    assert len(sent) < len(pickle.dumps(store)) + 1500
    assert_same_frames(store, pickle.loads(sent))


def test_clips_without_files_are_refused(store: ClipStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ClipStore, "files", lambda self, record, modality: [])
    with pytest.raises(ValueError, match=r"runtime.cache_dir is for clips in files"):
        DecodedClips(store, store.records, ["rgb"], folder=tmp_path)


def write(store: ClipStore, path: Path) -> None:
    write_frames(store, store.records, "rgb", path)


@pytest.mark.slow
def test_processes_that_come_at_once_write_one_file(store: ClipStore, tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=write, args=(store, tmp_path / "rgb.u8")) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0, 0]
    entries, is_complete = read_index(tmp_path / "rgb.jsonl")
    assert is_complete and [entry["video"] for entry in entries] == [one.video_id for one in store.records]
    assert (tmp_path / "rgb.u8").stat().st_size == entries[-1]["end"]
