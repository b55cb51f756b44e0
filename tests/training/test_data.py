"""The data of a run: views of chosen modalities, batches for several processes."""

import os
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.cached import CachedClips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.clips.shared_memory import LocalProcesses, MachineMemory
from covid_cmsf.training.data import make_loader, open_data, resolve_workers
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.views.batch import Sample
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from tests.training.factories import make_config

CPU = torch.device("cpu")


def test_all_labels_are_given_by_default(clips: Path) -> None:
    data = open_data(make_config(clips), online=["rgb"], target=["rgb"])
    assert data.labels.tolist() == [record.label for record in data.views.records]
    assert data.num_classes == 3 and len(data.views) == 21


@pytest.mark.parametrize(
    ("cores", "slots", "processes", "workers"), [(1, 1, 1, 0), (2, 1, 1, 1), (16, 1, 2, 7), (16, 2, 2, 3), (2, 1, 4, 0)]
)
def test_auto_workers_are_the_cores_that_a_process_has_left(
    cores: int, slots: int, processes: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores))
    runs: list[tuple[Literal["auto"] | None, str]] = [("auto", "cpu"), ("auto", "cuda"), (None, "cuda:1")]
    for chosen, device in runs:
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        assert resolve_workers(chosen, device, num_slots=slots, num_processes=processes) == workers
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
        assert resolve_workers(chosen, device, num_slots=slots) == workers
    assert [resolve_workers(chosen, "cuda") for chosen in (5, 0)] == [5, 0]
    assert [resolve_workers(chosen, "cpu", num_slots=slots) for chosen in (5, 0, None)] == [5, 0, 2]


def samples(clips: Path, online: list[str] | None, target: list[str] | None, *, share: bool = True) -> list[Sample]:
    chosen = ViewConfig(modalities=("rgb", "flow", "frame"), length=8, size=32, frame_size=40, share_geometry=share)
    store = open_clips(clips)
    data = ViewDataset(store, store.select("1", "train"), chosen, seed=3, online=online, target=target)
    return [data[SampleKey(0, video, video)] for video in range(4)]


@pytest.mark.parametrize("share", [True, False])
def test_modalities_that_nobody_looks_at_are_left_out_and_the_rest_stays_the_same(clips: Path, share: bool) -> None:
    for online, target in ((["rgb"], ["flow"]), ([], ["frame", "rgb"]), (["flow"], []), (["frame"], ["flow"])):
        for part, whole in zip(
            samples(clips, online, target, share=share), samples(clips, None, None, share=share), strict=True
        ):
            assert [set(view) for view in part.views] == [set(online), set(target)]
            for view, full in zip(part.views, whole.views, strict=True):
                assert all(torch.equal(view[name], full[name]) for name in view)
            assert (part.video, part.source, part.label) == (whole.video, whole.source, whole.label)


def test_only_what_is_looked_at_is_read(clips: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, opened = open_clips(clips), []
    real = type(store).read_raw

    def read_raw(self: object, record: ClipRecord, name: str, numbers: list[int]) -> torch.Tensor:
        opened.append(name)
        return real(store, record, name, numbers)

    monkeypatch.setattr(type(store), "read_raw", read_raw)
    chosen = ViewConfig(modalities=("rgb", "flow"), length=8, size=32)
    data = ViewDataset(store, store.select("1", "train"), chosen, seed=0, online=["rgb"], target=["rgb"])
    assert data[SampleKey(0, 0, 0)].views and set(opened) == {"rgb"}


def test_two_processes_share_the_batches_of_one(clips: Path) -> None:
    chosen = make_config(clips)
    data = open_data(chosen, online=["rgb"], target=["rgb"])
    one = [batch.videos.tolist() for batch in make_loader(data, chosen, DistributedContext(0, 1, CPU)).epoch(0)]
    ranks = [make_loader(data, chosen, DistributedContext(rank, 2, CPU)).epoch(0) for rank in (0, 1)]
    two = [[*first.videos.tolist(), *second.videos.tolist()] for first, second in zip(*ranks, strict=True)]
    assert one == two and len(one) == 5


def test_the_processes_of_a_machine_share_the_memory_for_clips(clips: Path) -> None:
    """Two threads in the place of two processes: each decodes its part, and both read all of it."""
    config, store = make_config(clips, runtime={"cache_gb": 0.001}), open_clips(clips)
    alone = open_data(config, online=["rgb"], target=["rgb"]).clips
    values: dict[int, Any] = {}
    barrier = threading.Barrier(2)

    def work(rank: int) -> CachedClips:
        def gather(value: Any) -> list[Any]:
            values[rank] = value
            barrier.wait(60)
            gathered = [values[0], values[1]]
            barrier.wait(60)
            return gathered

        local = LocalProcesses(rank, 2, gather)
        cached = open_data(config, online=["rgb"], target=["rgb"], local=local).clips
        assert isinstance(cached, CachedClips)
        return cached

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(work, (0, 1)))
    assert isinstance(alone, CachedClips) and 2 < alone.num_cached < len(alone.records)
    assert both[0].num_cached == both[1].num_cached >= alone.num_cached - 2
    assert 0 < both[0].num_bytes == both[1].num_bytes <= 0.001e9
    first, second = both
    assert isinstance(first._memory, MachineMemory) and isinstance(second._memory, MachineMemory)
    again = pickle.loads(pickle.dumps(first))
    first._memory.bytes[0] ^= 1  # one block: what one writes the other reads, and so do its workers
    assert second._memory.bytes[0] == first._memory.bytes[0] == again._memory.bytes[0]
    first._memory.bytes[0] ^= 1
    read = 0
    for record in store.records:
        if (record.video_id, "rgb") in second._locations:
            frames = second.read_raw(record, "rgb", [3, 0])
            assert torch.equal(frames, store.read_raw(record, "rgb", [3, 0]))
            read += 1
    assert read == second.num_cached


def test_cached_clips_have_all_attributes_of_the_clips(clips: Path) -> None:
    store = open_clips(clips)
    store.is_image, store.flow_bound = True, 7.5
    cached = CachedClips(store, [], ["rgb"], gigabytes=0.001)
    assert Clips.__annotations__.keys() >= {"is_image", "flow_bound", "records", "splits", "modalities"}
    for name in Clips.__annotations__:
        assert getattr(cached, name) == getattr(store, name), name


def test_batches_that_cannot_be_made_are_refused(clips: Path) -> None:
    data = open_data(make_config(clips), online=["rgb"], target=["rgb"])
    with pytest.raises(ValueError, match="batch_size 4 does not divide among 3 processes"):
        make_loader(data, make_config(clips), DistributedContext(0, 3, CPU))
    with pytest.raises(ValueError, match="21 videos do not fill one batch of 22"):
        make_loader(data, make_config(clips, batch_size=22, method={"name": "xent"}), DistributedContext(0, 1, CPU))
    thrice = make_config(clips, batch_size=22, repeat=3, method={"name": "xent"})
    assert make_loader(data, thrice, DistributedContext(0, 1, CPU)).num_batches == 2
