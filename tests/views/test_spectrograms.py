"""Sound as a modality: the pieces of a clip's frames become one picture, masked but never cropped."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.clips.sampling import pad_clip
from covid_cmsf.clips.store import ClipStore
from covid_cmsf.evaluation.features.protocol import EvalProtocol
from covid_cmsf.evaluation.features.video_dataset import VideoDataset
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.views.augment_params import SoundParams, sample_augment_params
from covid_cmsf.views.dataset import SampleKey, ViewDataset, required_frames
from covid_cmsf.views.loader import ViewLoader
from covid_cmsf.views.modalities import AUDIO_MEAN, AUDIO_STD, get_modality
from covid_cmsf.views.ops import change_sound
from covid_cmsf.views.presets import PRESETS, get_preset
from covid_cmsf.views.preview import save_view_preview
from tests.factories import build_once, make_sound_store

AUDIO = get_modality("audio")
NUM_FRAMES = 40


class Ramp(Clips):
    """Clips whose sound rises by a level from column to column; the mels of a column are equal."""

    def __init__(self) -> None:
        self.records = [ClipRecord(f"c/{n}", f"s{n}", "c", 0, NUM_FRAMES, 0, 25.0, 32, 32, "") for n in range(4)]
        self.splits, self.flow_bound, self.modalities = {}, 0.0, ("rgb", "audio")

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> torch.Tensor:
        assert modality == "audio"
        levels = 4 * torch.tensor(list(frame_indices)).view(-1, 1, 1, 1) + torch.arange(4)
        return levels.expand(-1, 1, 64, 4).to(torch.uint8)


@pytest.fixture(scope="module")
def sounds(tmp_path_factory: pytest.TempPathFactory) -> ClipStore:
    folder = build_once(tmp_path_factory, "sound-store", lambda root: void(make_sound_store(root)))
    return ClipStore.open(folder / "clips")


def void(_: object) -> None:
    """Return nothing."""


@pytest.mark.parametrize(("length", "stride"), [(8, 1), (4, 3), (1, 5), (5, 7)])
def test_a_window_has_every_frame_from_its_first_to_its_last(length: int, stride: int) -> None:
    window = list(range(2, 2 + length * stride, stride))
    assert required_frames(AUDIO, window, single=0) == list(range(window[0], window[-1] + 1))


@pytest.mark.parametrize("mode", ["pad", "loop"])
@pytest.mark.parametrize(("num_frames", "length", "stride"), [(5, 8, 1), (7, 4, 3), (2, 4, 8), (1, 4, 8)])
def test_short_videos_give_pictures_as_wide_as_long_ones(mode: str, num_frames: int, length: int, stride: int) -> None:
    window = pad_clip(num_frames, length=length, stride=stride, pad_mode=mode)  # type: ignore[arg-type]
    frames = required_frames(AUDIO, window, single=0)
    assert set(frames) <= set(range(num_frames)) and set(window) <= set(frames)
    if len(set(window)) > 1:
        assert len(frames) == (length - 1) * stride + 1


def test_the_view_shows_the_whole_time_of_the_clip_in_order() -> None:
    data = ViewDataset(Ramp(), modalities=("audio",), length=4, stride=5, size=16, seed=3)
    key = SampleKey(0, 0, 1)
    sample, drawn = data[key], data.drawn_views(key)
    target, first = sample.views[1]["audio"], drawn[1].frame_indices[0]
    assert target.shape == (1, 16, 16)
    levels = (target * AUDIO_STD + AUDIO_MEAN) * 255
    columns = levels[0].mean(0)
    assert torch.allclose(levels, columns.expand_as(levels), atol=1e-3), "neither cropped nor masked: rows are equal"
    steps = columns.diff()
    assert steps.min() > 2 and steps.max() < 5  # 16 frames have 64 columns, which became 16
    gain = round(float(columns.mean())) - (4 * first + 4 * 16 / 2)
    assert abs(gain) <= 0.06 * 255 + 1


def test_masks_and_gain_equal_a_loop_over_pixels() -> None:
    rng = np.random.default_rng(0)
    raw = torch.from_numpy(rng.integers(0, 256, (1, 1, 20, 30)).astype(np.uint8))
    params = SoundParams(time_mask=(0.5, 0.8), mel_mask=(0.1, 0.25), gain=-0.05)
    expected = raw.clone()
    for row in range(20):
        for column in range(30):
            louder = int(raw[0, 0, row, column]) + round(255 * -0.05)
            hidden = 2 <= row < 5 or 15 <= column < 24
            expected[0, 0, row, column] = 148 if hidden else min(max(louder, 0), 255)
    before = raw.clone()
    assert torch.equal(change_sound(raw, params, hidden=148), expected) and torch.equal(raw, before)


def test_strong_views_are_masked_and_evaluation_is_not() -> None:
    rng = np.random.default_rng(0)
    drawn = [sample_augment_params(get_preset("strong", "audio"), rng, height=64, width=128) for _ in range(200)]
    for one in drawn:
        assert one.sound is not None and one.color_jitter is None and not one.geometry.flip
        assert (one.geometry.top, one.geometry.left, one.geometry.height, one.geometry.width) == (0, 0, 1, 1)
        for first, end in (one.sound.time_mask, one.sound.mel_mask):
            assert 0 <= first <= end <= 1 and end - first <= 0.3
    widths = [one.sound.time_mask[1] - one.sound.time_mask[0] for one in drawn if one.sound is not None]
    assert 0.1 < np.mean(widths) < 0.2
    assert sample_augment_params(get_preset("eval", "audio"), rng, height=64, width=128).sound is None
    assert all("audio" in kinds for kinds in PRESETS.values())


def test_deferred_views_equal_those_of_workers(sounds: ClipStore) -> None:
    batches = []
    for defer in (False, True):
        data = ViewDataset(sounds, modalities=("rgb", "audio"), length=4, stride=2, size=24, seed=1, defer=defer)
        batches.append(next(iter(ViewLoader(data, batch_size=6).epoch(0))).to("cpu"))
    for one, other in zip(batches[0].views, batches[1].views, strict=True):
        assert one["audio"].shape == other["audio"].shape == (6, 1, 24, 24)
        assert (one["audio"] - other["audio"]).abs().max() < 0.05  # the pictures were rounded to levels before


def test_training_evaluation_and_preprocess_prepare_a_window_alike(sounds: ClipStore) -> None:
    record = sounds.records[3]
    values = {"modality": "audio", "mean": AUDIO.mean, "std": AUDIO.std, "length": 4, "stride": 3, "size": 32}
    data = VideoDataset(sounds, [record], ["test"], EvalProtocol(**values, num_windows=3))
    video = data[0]
    views = list(video.views(data.eval_protocol, torch.device("cpu")))
    assert not video.error and len(views) == 3 and video.starts == (0, 7, 14)
    patches = sounds.read_raw(record, "audio", range(24)).float()
    for view, start in zip(views, video.starts, strict=True):
        joined = torch.cat([patches[number, 0] for number in range(start, start + 10)], dim=1)  # (64, 40)
        small = torch.nn.functional.interpolate(joined[None, None], (32, 32), mode="bilinear", antialias=True)[0]
        assert (view - (small / 255 - AUDIO_MEAN) / AUDIO_STD).abs().max() < 0.03
    names = {"encoder": "r10_small", "in_channels": 1, "input_size": (4, 32, 32), "stride": 3, "bn_eps": 1e-5}
    metadata = EncoderMetadata(**names, mean=AUDIO.mean, std=AUDIO.std, modality="audio")
    transform = InputTransform.from_metadata(metadata)
    assert torch.equal(transform(patches[7:17].to(torch.uint8)), views[1])


def test_sound_is_not_cropped_several_times(sounds: ClipStore) -> None:
    values = {"modality": "audio", "mean": AUDIO.mean, "std": AUDIO.std, "length": 4, "stride": 3, "size": 32}
    with pytest.raises(ValueError, match="not cropped"):
        VideoDataset(sounds, [], [], EvalProtocol(**values, num_windows=3), num_crops=10)


def test_views_of_sound_are_drawn(sounds: ClipStore, tmp_path: Path) -> None:
    data = ViewDataset(sounds, modalities=("rgb", "audio"), length=4, stride=3, size=32)
    save_view_preview(data, [0, 1], tmp_path / "views.png")
    assert (tmp_path / "views.png").stat().st_size > 1000
