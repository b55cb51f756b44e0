"""Data sets and loaders: determinism, sharing of draws, resuming, several processes, broken clips."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.cached import CachedClips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.views import loader as loader_module
from covid_cmsf.views.batch import Batch, DeferredViews
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from covid_cmsf.views.loader import EpochSampler, ViewLoader


class SyntheticClips(Clips):
    """Frames whose red channel is the video's number and whose green channel is the frame's; videos 0.. may fail."""

    def __init__(self, num_videos: int = 10, num_frames: int = 20, broken: set[int] | None = None) -> None:
        self.records = [
            ClipRecord(f"c/{i}", f"s{i // 2}", "c", i % 3, num_frames, num_frames - 1, 25.0, 40, 32, "")
            for i in range(num_videos)
        ]
        self.splits, self.flow_bound, self.broken = {}, 20.0, broken or set()
        self.modalities = ("rgb", "flow")
        self.reads: list[tuple[str, str, int]] = []

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> torch.Tensor:
        number = int(record.video_id.split("/")[1])
        if number in self.broken:
            raise ValueError("damaged")
        self.reads.append((record.video_id, modality, len(frame_indices)))
        channels = 2 if modality == "flow" else 3
        raw = torch.zeros(len(frame_indices), channels, 32, 40, dtype=torch.uint8)
        raw[:, 0] = number
        raw[:, 1] = torch.tensor(frame_indices, dtype=torch.uint8).view(-1, 1, 1)
        raw[..., 20:] += 100  # left and right differ
        return raw


SMALL = {"length": 4, "size": 16, "frame_size": 24}


def dataset(clips: Clips | None = None, *, seed: int = 0, defer: bool = False, **changes: object) -> ViewDataset:
    clips = clips or SyntheticClips()
    config = ViewConfig.model_validate({**SMALL, "modalities": ("rgb", "flow"), **changes})
    return ViewDataset(clips, clips.records, config, seed=seed, defer=defer)


def assert_same(first: Batch, second: Batch) -> None:
    assert torch.equal(first.videos, second.videos)
    for one, other in zip(first.views, second.views, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_sample_follows_from_its_key_alone() -> None:
    key = SampleKey(epoch=3, position=17, video=5)
    first, again = dataset()[key], dataset()[key]
    assert all(torch.equal(a[m], b[m]) for a, b in zip(first.views, again.views, strict=True) for m in a)
    for other in (SampleKey(4, 17, 5), SampleKey(3, 18, 5)):
        assert not torch.equal(dataset()[other].views[0]["rgb"], first.views[0]["rgb"])
    assert not torch.equal(dataset(seed=1)[key].views[0]["rgb"], first.views[0]["rgb"])


def test_views_have_the_shapes_that_networks_expect() -> None:
    sample = dataset(modalities=("rgb", "flow", "residual_flow", "rgbdiff", "frame"))[SampleKey(0, 0, 4)]
    shapes = {name: tuple(view.shape) for name, view in sample.views[0].items()}
    assert shapes == {
        "rgb": (3, 4, 16, 16),
        "flow": (2, 4, 16, 16),
        "residual_flow": (2, 4, 16, 16),
        "rgbdiff": (3, 4, 16, 16),
        "frame": (3, 24, 24),
    }
    assert (sample.video, sample.source, sample.label) == (4, 2, 1)


def test_rgb_and_flow_of_a_view_share_frame_numbers_crop_and_flip() -> None:
    data = dataset(modalities=("rgb", "flow"), pairing="weak_weak", flow_style="coclr")
    for position in range(10):
        rgb, flow = (data[SampleKey(0, position, 3)].views[0][name] for name in ("rgb", "flow"))
        # Undo the normalization: the store's channel 1 (frame numbers, with the right half brighter) is in both.
        number = rgb[1] * 0.224 + 0.456
        assert torch.allclose(number, flow[1] * 0.224 + 0.456, atol=1e-5)


def test_crops_can_be_kept_large() -> None:
    data = dataset(crop=(0.7, 0.9), defer=True, size=24)
    cuts = [params["rgb"].geometry for position in range(50) for params in data[SampleKey(0, position, 3)].params]
    areas = [cut.height * cut.width for cut in cuts]
    assert min(areas) > 0.65 and max(areas) < 0.95  # whole pixels
    assert max(areas) - min(areas) > 0.1


def test_strong_views_can_go_without_blur() -> None:
    def blurs(blur: float | None) -> list[bool]:
        data = dataset(blur=blur, pairing="weak_strong", defer=True)
        params = [data[SampleKey(0, position, 3)].params for position in range(40)]
        assert not any(target["rgb"].blur_sigma for _, target in params)  # weak views have none to begin with
        return [bool(online["rgb"].blur_sigma) for online, _ in params]

    assert 8 < sum(blurs(None)) < 32
    assert not any(blurs(0.0)) and all(blurs(1.0))


def test_they_differ_when_geometry_is_not_shared() -> None:
    data = dataset(pairing="weak_weak", flow_style="coclr", share_geometry=False)
    samples = [data[SampleKey(0, position, 3)].views[0] for position in range(6)]
    assert any(not torch.allclose(sample["rgb"][1], sample["flow"][1], atol=0.05) for sample in samples)


def test_the_two_views_are_different_clips_unless_asked_otherwise() -> None:
    def frames(view: torch.Tensor) -> torch.Tensor:
        return ((view[1] * 0.224 + 0.456) * 255).amin(dim=(1, 2)).round()

    two = [dataset(pairing="weak_weak")[SampleKey(0, p, 1)].views for p in range(8)]
    one = [dataset(pairing="weak_weak", num_clips=1)[SampleKey(0, p, 1)].views for p in range(8)]
    assert any(frames(a["rgb"]).tolist() != frames(b["rgb"]).tolist() for a, b in two)
    # A crop may miss the dark half; then all frames are brighter by 100.
    assert all((frames(a["rgb"]) % 100).tolist() == (frames(b["rgb"]) % 100).tolist() for a, b in one)


def test_a_clip_that_serves_both_views_is_decoded_once() -> None:
    clips = SyntheticClips()
    dataset(clips, num_clips=1)[SampleKey(0, 0, 1)]
    assert clips.reads == [("c/1", "rgb", 4), ("c/1", "flow", 4)]


@pytest.mark.parametrize("size", [16, 24])  # resized by the worker, and on the device
def test_deferred_views_are_finished_to_the_same_values(size: int) -> None:
    direct, deferred = (
        next(ViewLoader(dataset(defer=defer, size=size), batch_size=4, num_workers=0).epoch(0))
        for defer in (False, True)
    )
    waiting = deferred.deferred["rgb"]
    assert isinstance(waiting, DeferredViews) and waiting.frames.dtype == torch.uint8 and not any(deferred.views)
    finished = deferred.to("cpu")
    assert torch.equal(direct.videos, finished.videos)
    for one, other in zip(direct.views, finished.views, strict=True):
        assert one.keys() == other.keys()
        for name in one:  # the CPU rounds to 255 levels after the crop; a level is about 0.02 here
            assert torch.allclose(one[name], other[name], atol=0.08) and (one[name] - other[name]).abs().mean() < 0.02


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [1, 2])
def test_batches_do_not_depend_on_the_number_of_workers(num_workers: int) -> None:
    alone = list(ViewLoader(dataset(), batch_size=3, num_workers=0).epoch(1))
    loader = ViewLoader(dataset(), batch_size=3, num_workers=num_workers)
    for first, second in zip(alone, loader.epoch(1), strict=True):
        assert_same(first, second)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_batches_do_not_depend_on_how_workers_start(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = list(ViewLoader(dataset(), batch_size=3, num_workers=0).epoch(1))
    monkeypatch.setattr(loader_module, "worker_start_method", lambda num_workers: method)
    loader = ViewLoader(dataset(), batch_size=3, num_workers=2)
    for first, second in zip(alone, loader.epoch(1), strict=True):
        assert_same(first, second)


def test_an_epoch_can_be_continued_in_the_middle() -> None:
    whole = list(ViewLoader(dataset(), batch_size=2, num_workers=0).epoch(2))
    loader = ViewLoader(dataset(), batch_size=2, num_workers=0)
    rest = list(loader.epoch(2, first_batch=3))
    assert len(rest) == 2
    for first, second in zip(whole[3:], rest, strict=True):
        assert_same(first, second)
    assert len(list(loader.epoch(3))) == 5, "the next epoch is whole again"


def test_every_video_comes_once_an_epoch_in_a_new_order() -> None:
    sampler = EpochSampler(range(12), batch_size=4, seed=0)
    orders = []
    for epoch in (0, 1):
        sampler.start_at(epoch)
        orders.append([key.video for keys in sampler for key in keys])
    assert sorted(orders[0]) == sorted(orders[1]) == list(range(12)) and orders[0] != orders[1]


def test_processes_together_see_the_batches_of_one() -> None:
    one = list(EpochSampler(range(50), batch_size=8, seed=3))
    ranks = [list(EpochSampler(range(50), batch_size=4, seed=3, rank=rank, world_size=2)) for rank in (0, 1)]
    assert [a + b for a, b in zip(*ranks, strict=True)] == one


def test_repeat_oversamples_and_repeats_differ() -> None:
    keys = [key for batch in EpochSampler(range(3), batch_size=5, seed=0, repeat=10) for key in batch]
    assert len(keys) == 30 and {key.video for key in keys} == {0, 1, 2} and len({key.position for key in keys}) == 30


def test_a_set_smaller_than_a_batch_is_explained() -> None:
    with pytest.raises(ValueError, match="3 videos do not fill one batch of 8"):
        EpochSampler(range(3), batch_size=4, seed=0, world_size=2)


def test_a_broken_clip_is_replaced_and_counted() -> None:
    data = dataset(SyntheticClips(broken={4}))
    sample = data[SampleKey(0, 0, 4)]
    assert sample.video != 4 and "c/4: damaged" in sample.read_error
    loader = ViewLoader(data, batch_size=5, num_workers=0)
    batches = list(loader.epoch(0))
    assert loader.num_replaced == sum(batch.num_replaced for batch in batches) >= 1
    assert all(4 not in batch.videos for batch in batches)


def test_more_than_one_percent_of_broken_clips_stops_the_run() -> None:
    loader = ViewLoader(dataset(SyntheticClips(40, broken={4, 9})), batch_size=10, num_workers=0, repeat=10)
    with pytest.raises(RuntimeError, match="clips could not be read; the last: c/[49]: damaged.*clips check"):
        list(loader.epoch(0))
    with pytest.raises(RuntimeError, match="in a row could not be read; the first: c/2: damaged"):
        dataset(SyntheticClips(5, broken=set(range(5))))[SampleKey(0, 0, 2)]


def test_the_cache_gives_the_same_views_and_keeps_to_its_bound() -> None:
    clips = SyntheticClips()
    one_video = 20 * 3 * 32 * 40 + 19 * 2 * 32 * 40
    cached = CachedClips(clips, clips.records, ["rgb", "flow"], gigabytes=3.5 * one_video / 1e9)
    assert cached.num_cached == 3 and cached.num_bytes == 3 * one_video
    clips.reads.clear()
    for video in (0, 9):
        first, second = dataset(clips)[SampleKey(0, 0, video)], dataset(cached)[SampleKey(0, 0, video)]
        assert torch.equal(first.views[1]["flow"], second.views[1]["flow"])
    assert [read[0] for read in clips.reads].count("c/0") == 2, "from memory the second time"
    with pytest.raises(ValueError, match="asked for 20"):
        cached.read_raw(clips.records[0], "rgb", [20])


def test_the_cache_keeps_the_layout_in_which_frames_were_decoded() -> None:
    class Decoded(SyntheticClips):
        def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> torch.Tensor:
            raw = super().read_raw(record, modality, frame_indices)
            return raw if modality == "flow" else raw.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)

    clips = Decoded(2)
    cached = CachedClips(clips, clips.records, ["rgb", "flow"], gigabytes=1)
    for modality in ("rgb", "flow"):
        first, second = (one.read_raw(clips.records[1], modality, [7, 3, 4]) for one in (clips, cached))
        assert torch.equal(first, second) and first.stride() == second.stride()


def test_the_cache_leaves_a_broken_video_to_the_disk() -> None:
    clips = SyntheticClips(broken={1})
    cached = CachedClips(clips, clips.records[:4], ["rgb", "flow"], gigabytes=1)
    assert cached.num_cached == 3
    with pytest.raises(ValueError, match="damaged"):
        cached.read_raw(clips.records[1], "rgb", [0])


@pytest.mark.slow
def test_a_cache_is_shared_with_workers() -> None:
    clips = SyntheticClips()
    cached = CachedClips(clips, clips.records, ["rgb", "flow"], gigabytes=0.1)
    for first, second in zip(
        ViewLoader(dataset(clips), batch_size=3, num_workers=0).epoch(1),
        ViewLoader(dataset(cached), batch_size=3, num_workers=1).epoch(1),
        strict=True,
    ):
        assert_same(first, second)


def test_flow_that_is_shorter_than_rgb_limits_the_frames() -> None:
    from dataclasses import replace

    clips = SyntheticClips()
    clips.records = [replace(record, num_flow=5) for record in clips.records]
    rgb = [dataset(clips, pairing="weak_weak")[SampleKey(0, p, 0)].views[0]["rgb"] for p in range(12)]
    numbers = [((view[1] * 0.224 + 0.456) * 255).amin(dim=(1, 2)).round() % 100 for view in rgb]
    assert max(int(one.max()) for one in numbers) == 4
    clips.modalities = ("rgb",)
    with pytest.raises(ValueError, match="these clips have rgb; modality .flow. can.t be read"):
        dataset(clips)


def test_settings_are_checked() -> None:
    for changes, message in (
        ({"modalities": ["rgb", "depth"]}, "unknown modality 'depth'"),
        ({"modalities": ["rgb", "rgb"]}, "listed twice"),
        ({"pairing": "x"}, "unknown pairing"),
        ({"pad_mode": "mirror"}, "pad"),
        ({"crop": [0.9, 0.5]}, "crop is .* must be"),
    ):
        with pytest.raises(ValueError, match=message):
            ViewConfig.model_validate(changes)
    with pytest.raises(ValueError, match="enough frames"):
        dataset(SyntheticClips(num_frames=1))


@pytest.mark.real
def test_views_of_a_real_clip_are_as_random_and_as_similar_as_they_should_be(real_videos: Path, tmp_path: Path) -> None:
    from tests.preprocess.commands import preprocess

    videos = tmp_path / "videos" / "Surfing"
    videos.mkdir(parents=True)
    for path in sorted(real_videos.glob("Surfing/*.avi"))[:2]:
        (videos / path.name).symlink_to(path)
    options = ["--max-frames", "40", "--short-edge", "96"]
    assert preprocess(videos.parent, tmp_path / "clips", *options).returncode == 0
    store = ClipStore.open(tmp_path / "clips")
    data = ViewDataset(store, store.records, ViewConfig(length=16, size=64), seed=0)
    sample = data[SampleKey(0, 0, 0)]
    for view in sample.views:
        assert view["rgb"].shape == (3, 16, 64, 64) and 0.3 < float(view["rgb"].std()) < 3
        assert view["flow"].abs().mean() < 5
