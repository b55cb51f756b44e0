"""Views of a whole batch on the device: the views of the CPU, in few kernel launches and without waiting."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.models.input_transform import normalize_view, normalize_views
from covid_cmsf.views import batch_ops, dataset
from covid_cmsf.views.augment_params import AugmentParams, sample_augment_params
from covid_cmsf.views.batch import Batch
from covid_cmsf.views.batch_augment import augment_batch, plan_batch
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from covid_cmsf.views.merge import merge_batches
from covid_cmsf.views.modalities import COCLR_FLOW, MODALITIES, FlowStyle, Modality, get_modality
from covid_cmsf.views.ops import crop_resize
from covid_cmsf.views.pipeline import make_view
from covid_cmsf.views.presets import PAIRINGS, get_preset
from tests.evaluation.factories import SyntheticClips
from tests.factories import moving_square
from tests.pretended_gpu import pretended_gpu

SIZE = 32
KINDS = {**MODALITIES, "flow as an image": COCLR_FLOW}
Drawn = tuple[list[Tensor], list[AugmentParams], list[FlowLevels]]


def draw(modality: Modality, presets: Sequence[str], *, count: int = 24) -> Drawn:
    """Clips of different sizes, in both memory layouts, with random parameters."""
    rng, clips, params, levels = np.random.default_rng(0), [], [], []
    for number in range(count):
        height, width = int(rng.integers(30, 60)), int(rng.integers(40, 70))
        square = moving_square(1 if modality.is_image else 4, width=width, height=height, seed=number)
        raw = torch.from_numpy(square).permute(0, 3, 1, 2)
        stored = raw[:, :2] if modality.is_flow else raw[:, :1] if modality.spectrogram else raw
        clips.append(raw if stored is raw else stored.contiguous())
        augmentation = get_preset(presets[number % len(presets)], modality.kind, size=SIZE)
        params.append(sample_augment_params(augmentation, rng, height=height, width=width))
        levels.append(FlowLevels(float(rng.uniform(3, 20))))
    return clips, params, levels


def level_of(modality: Modality, levels: Sequence[FlowLevels], views: Tensor) -> Tensor:
    """One level of 255 in units of the normalized views, which broadcasts to them."""
    values = [[(one.step if modality.signed_x else 1 / 255) / std for std in modality.std] for one in levels]
    return torch.tensor(values).view(len(levels), -1, *[1] * (views.dim() - 2))


@pytest.mark.parametrize("name", KINDS)
def test_they_are_the_views_of_single_clips(name: str) -> None:
    modality = KINDS[name]
    clips, params, levels = draw(modality, ("strong", "coclr", "weak"))
    frames, plan = plan_batch(clips, params, modality, size=SIZE, levels=levels)
    views = augment_batch(frames, plan)

    def twin(*, exact: bool) -> Tensor:
        made = [
            make_view(clip.float() if exact else clip, one, modality, size=SIZE, levels=level)
            for clip, one, level in zip(clips, params, levels, strict=True)
        ]
        return torch.stack(made)

    level = level_of(modality, levels, views)
    assert ((views - twin(exact=True)) / level).abs().max() < 0.01
    # Today's CPU path rounds to uint8 after the crop; up to three changes of color make the difference larger.
    rounded = ((views - twin(exact=False)) / level).abs()
    assert rounded.mean() < 0.5 and rounded.max() < (1.01 if not modality.has_color else 6)


@pytest.mark.parametrize("name", KINDS)
def test_cropped_clips_of_an_evaluation_have_the_views_of_the_cpu(name: str) -> None:
    modality = KINDS[name]
    clips, params, levels = draw(modality, ("strong", "coclr", "weak"))
    assert len({one.geometry.flip for one in params}) == (1 if modality.spectrogram else 2)
    cropped = [crop_resize(clip, one.geometry, SIZE) for clip, one in zip(clips, params, strict=True)]
    norm = {"mean": tuple(0.0 if modality.signed_x else 0.3 for _ in modality.mean), "std": modality.std}
    twin = torch.stack([normalize_view(clip, one, modality, **norm, levels=level)
                        for clip, one, level in zip(cropped, params, levels, strict=True)])  # fmt: skip
    with pretended_gpu() as gpu:
        views = normalize_views(cropped, params, modality, **norm, levels=levels, device=torch.device("cuda"))
        assert views.is_cuda and gpu.lines == [] and gpu.launches <= 150
        found = views.cpu()
    assert found.shape == twin.shape and ((found - twin) / level_of(modality, levels, twin)).abs().max() < 0.01


def test_every_order_of_colors_is_kept() -> None:
    modality = MODALITIES["rgb"]
    clips, params, levels = draw(modality, ("strong",), count=150)
    orders = {one.color_jitter.order for one in params if one.color_jitter is not None}
    assert len(orders) == 24 and any(one.color_jitter is None for one in params)
    frames, plan = plan_batch(clips, params, modality, size=SIZE, levels=levels)
    twin = torch.stack([make_view(clip.float(), one, modality, size=SIZE, levels=levels[0])
                        for clip, one in zip(clips, params, strict=True)])  # fmt: skip
    assert (augment_batch(frames, plan) - twin).abs().max() < 1e-3


def test_memory_is_bounded_by_chunks_that_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    modality = MODALITIES["rgb"]
    clips, params, levels = draw(modality, ("weak",))
    frames, plan = plan_batch(clips, params, modality, size=SIZE, levels=levels)
    whole = augment_batch(frames, plan)
    monkeypatch.setattr(batch_ops, "CHUNK_BYTES", 5 * frames[0].numel() * 4)
    assert torch.allclose(augment_batch(frames, plan), whole, atol=1e-5)


class ClipsOfTwoSizes(SyntheticClips):
    """Clips of the first half of the classes are smaller; RGB is channels-last, as decoders give it."""

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        raw = super().read_raw(record, modality, frame_indices)
        if record.label < len(self.records) // 4:
            raw = raw[..., :26, :30].contiguous()
        return raw if modality == "flow" else raw.contiguous(memory_format=torch.channels_last)


def paper_batch(
    num_videos: int, *, num_parts: int = 1, pairing: str = "weak_strong", flow_style: FlowStyle = "motion"
) -> Batch:
    """A pinned batch as of CMSF on RGB with a live guide for flow, from workers that each made a part of it."""
    clips = (ClipsOfTwoSizes if num_parts > 1 else SyntheticClips)(num_classes=num_videos // 2, num_sources=1)
    config = ViewConfig(length=2, size=24, pairing=pairing, flow_style=flow_style)
    data = ViewDataset(clips, clips.records, config, online=["rgb"], defer=True)
    keys = [SampleKey(0, position, position) for position in range(num_videos)]
    step = num_videos // num_parts
    parts = [data.collate_fn()([data[key] for key in keys[i : i + step]]) for i in range(0, num_videos, step)]
    return merge_batches([part.pin_memory() for part in parts], pin=True)


@pytest.mark.parametrize("flow_style", ["motion", "coclr"])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_both_views_are_made_at_once_and_are_those_of_single_clips(pairing: str, flow_style: FlowStyle) -> None:
    clips = SyntheticClips()
    config = ViewConfig(length=2, size=24, pairing=pairing, flow_style=flow_style)
    data = ViewDataset(clips, clips.records, config, online=["rgb"], defer=True)
    samples = [data[SampleKey(0, position, position % len(data))] for position in range(2 * len(data))]
    batch = data.collate_fn()(samples)
    assert {name: one.view_numbers for name, one in batch.deferred.items()} == {"rgb": (0, 1), "flow": (1,)}
    made = batch.to("cpu")
    assert [[*view] for view in made.views] == [["rgb"], ["rgb", "flow"]]
    for number, views in enumerate(made.views):
        for name, view in views.items():
            modality, levels = get_modality(name, flow_style=flow_style), [sample.levels for sample in samples]
            twin = torch.stack(
                [
                    make_view(
                        sample.views[number][name].float(),
                        sample.params[number][name],
                        modality,
                        size=24,
                        levels=sample.levels,
                    )
                    for sample in samples
                ]
            )
            assert ((view - twin) / level_of(modality, levels, view)).abs().max() < 0.01


@pytest.mark.parametrize("num_parts", [1, 4])
@pytest.mark.parametrize("flow_style", ["motion", "coclr"])
@pytest.mark.parametrize("pairing", PAIRINGS)
def test_a_batch_of_128_with_a_live_guide_launches_few_kernels(
    pairing: str, flow_style: FlowStyle, num_parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = 64 * 2 * 3 * 28 * 32 * 4  # two chunks, as for 128 clips of 32 frames with a short edge of 160
    monkeypatch.setattr(batch_ops, "CHUNK_BYTES", chunk)
    with pretended_gpu() as gpu:
        batch = paper_batch(128, num_parts=num_parts, pairing=pairing, flow_style=flow_style)
        assert gpu.launches == 0
        moved = batch.to("cuda")
        assert moved.online["rgb"].is_cuda and set(moved.target) == {"rgb", "flow"}
        assert gpu.launches <= 200, gpu.kernels.most_common(20)
        assert gpu.lines == []


def test_the_number_of_launches_does_not_depend_on_the_batch_size() -> None:
    counts = []
    for num_videos in (32, 64):
        with pretended_gpu() as gpu:
            paper_batch(num_videos).to("cuda")
            counts.append(gpu.launches)
    assert counts[0] == counts[1]


@pytest.mark.parametrize("num_parts", [1, 4])
def test_a_batch_that_comes_back_from_the_gpu_is_there_at_once(num_parts: int) -> None:
    with pretended_gpu():
        batch = paper_batch(8, num_parts=num_parts)
        expected = batch.to("cpu")
        for found in (batch.copy_to("cuda").copy_to("cpu").apply_deferred(), batch.to("cuda").to("cpu")):
            assert torch.equal(found.videos, expected.videos)
            for views, others in zip(found.views, expected.views, strict=True):
                for name, view in views.items():
                    assert torch.allclose(view, others[name], atol=1e-5), name


def test_large_frames_are_resized_before_they_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    clips = SyntheticClips()
    data = ViewDataset(clips, clips.records, ViewConfig(length=2, size=24), defer=True)
    key = SampleKey(0, 0, 0)
    assert data[key].views[0]["rgb"].shape == (2, 3, 28, 32)
    sent_whole = data.collate_fn()([data[key], data[SampleKey(0, 1, 1)]]).to("cpu")
    monkeypatch.setattr(dataset, "MAX_SHIPPED_VIEWS", 1.0)
    assert data[key].views[0]["rgb"].shape == (2, 3, 24, 24)
    resized = data.collate_fn()([data[key], data[SampleKey(0, 1, 1)]]).to("cpu")
    difference = (sent_whole.target["rgb"] - resized.target["rgb"]).abs() * 255 * 0.225
    assert difference.max() < 1.1
