"""Every operation equals torchvision's (or NumPy's) on random input."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF

from covid_cmsf.clips.flow_codec import COCLR_LEVELS, FlowLevels
from covid_cmsf.views.augment_params import ColorJitterParams, GeometryParams, sample_augment_params, sample_geometry
from covid_cmsf.views.modalities import COCLR_FLOW, MODALITIES, compensate_camera, dequantize, get_modality
from covid_cmsf.views.ops import (
    blur_,
    brightness_,
    contrast_,
    crop_resize,
    gaussian_weights,
    gray_,
    hue_,
    jitter_,
    luma,
    saturation_,
)
from covid_cmsf.views.pipeline import FRAMES_PER_CHUNK, make_view
from covid_cmsf.views.presets import PRESETS, STRONG, Augmentation, get_preset


@pytest.fixture
def clip() -> torch.Tensor:
    return torch.rand(3, 3, 37, 45, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("factor", [0.0, 0.6, 1.0, 1.4])
def test_brightness_contrast_and_saturation_equal_torchvisions(clip: torch.Tensor, factor: float) -> None:
    assert torch.allclose(brightness_(clip.clone(), factor), TF.adjust_brightness(clip, factor), atol=1e-6)
    for ours, theirs in ((contrast_, TF.adjust_contrast), (saturation_, TF.adjust_saturation)):
        assert torch.allclose(ours(clip.clone(), factor), theirs(clip, factor), atol=1e-6)


@pytest.mark.parametrize("shift", [-0.5, -0.1, 0.0, 0.07, 0.5])
def test_hue_equals_torchvisions_also_for_gray_and_pure_colors(clip: torch.Tensor, shift: float) -> None:
    clip[0, :, 0] = 0.4
    clip[1, :, :3] = torch.tensor([1.0, 0.0, 0.0]).view(3, 1, 1)
    clip[2, :, :2] = torch.tensor([0.3, 0.3, 0.9]).view(3, 1, 1)
    assert torch.allclose(hue_(clip.clone(), shift), TF.adjust_hue(clip, shift), atol=1e-5)


def test_jitter_applies_the_operations_in_the_drawn_order(clip: torch.Tensor) -> None:
    color_jitter = ColorJitterParams(brightness=1.3, contrast=0.7, saturation=1.4, hue=0.1, order=(3, 1, 0, 2))
    slow = TF.adjust_hue(clip, 0.1)
    slow = TF.adjust_saturation(TF.adjust_brightness(TF.adjust_contrast(slow, 0.7), 1.3), 1.4)
    assert torch.allclose(jitter_(clip.clone(), color_jitter), slow, atol=1e-5)


def test_gray_is_the_luma_or_one_channel(clip: torch.Tensor) -> None:
    assert torch.allclose(gray_(clip.clone(), -1), TF.rgb_to_grayscale(clip, num_output_channels=3), atol=1e-6)
    assert torch.equal(gray_(clip.clone(), 2), clip[:, 2:3].expand_as(clip))
    assert luma(clip).shape == (3, 1, 37, 45)


@pytest.mark.parametrize("sigma", [0.1, 0.7, 2.0, 30.0])
def test_blur_equals_torchvisions_with_the_same_kernel(clip: torch.Tensor, sigma: float) -> None:
    size = 2 * (len(gaussian_weights(sigma, 36)) - 1) + 1
    slow = TF.gaussian_blur(clip, [size, size], [sigma, sigma])
    assert torch.allclose(blur_(clip.clone(), sigma), slow, atol=2e-6)


def test_a_cut_is_a_crop_and_an_antialiased_resize() -> None:
    raw = torch.randint(0, 256, (2, 3, 60, 80), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    geometry = GeometryParams(top=6 / 60, left=8 / 80, height=30 / 60, width=40 / 80, flip=False)
    slow = TF.resized_crop(raw, 6, 8, 30, 40, [24, 24], antialias=True)
    assert (crop_resize(raw, geometry, 24).int() - slow.int()).abs().max() <= 1
    values = raw.float()
    assert torch.allclose(crop_resize(values, geometry, 24), TF.resized_crop(values, 6, 8, 30, 40, [24, 24]), atol=1e-3)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_exist_for_all_kinds_and_any_size(name: str) -> None:
    for kind in ("rgb", "flow", "image"):
        assert get_preset(name, kind, size=40).size == 40
    with pytest.raises(ValueError, match="choose from strong, weak"):
        get_preset("stronk", "rgb")


def test_flow_has_no_color_operations_by_default() -> None:
    for name in ("strong", "weak", "std", "eval"):
        flow = get_preset(name, "flow")
        assert flow.jitter == flow.gray == flow.blur == 0
    assert not MODALITIES["flow"].has_color and COCLR_FLOW.has_color


def test_crops_have_the_asked_area_and_shape_and_fit() -> None:
    rng, config = np.random.default_rng(0), Augmentation(scale=(0.2, 0.5))
    for _ in range(300):
        g = sample_geometry(config, rng, height=240, width=320, flip=False)
        assert 0.19 < g.height * g.width < 0.51
        assert 0.74 < g.width * 320 / (g.height * 240) < 1.35
        assert g.top >= 0 and g.left >= 0 and g.top + g.height <= 1 + 1e-9 and g.left + g.width <= 1 + 1e-9


def test_one_attempt_squashes_the_whole_frame_about_as_often_as_coclr() -> None:
    rng, config = np.random.default_rng(0), get_preset("coclr", "rgb")
    drawn = [sample_geometry(config, rng, height=240, width=320, flip=False) for _ in range(3000)]
    assert 0.2 < drawn.count(GeometryParams(0, 0, 1, 1, False)) / 3000 < 0.35
    careful = [sample_geometry(STRONG, rng, height=240, width=320, flip=False) for _ in range(300)]
    assert GeometryParams(0, 0, 1, 1, False) not in careful


def test_the_center_square_is_deterministic() -> None:
    g = sample_geometry(get_preset("eval", "rgb"), np.random.default_rng(0), height=240, width=320, flip=False)
    assert (g.top * 240, g.left * 320, g.height * 240, g.width * 320) == pytest.approx((8, 48, 224, 224))


def test_probabilities_are_kept() -> None:
    rng = np.random.default_rng(0)
    params = [sample_augment_params(STRONG, rng, height=240, width=320) for _ in range(4000)]
    shares = [
        np.mean([d.geometry.flip for d in params]),
        np.mean([d.color_jitter is not None for d in params]),
        np.mean([d.gray_channel is not None for d in params]),
        np.mean([d.blur_sigma is not None for d in params]),
    ]
    assert shares == pytest.approx([0.5, 0.8, 0.2, 0.5], abs=0.03)
    factors = np.array([d.color_jitter.brightness for d in params if d.color_jitter is not None])
    assert 0.6 <= factors.min() < 0.61 and 1.39 < factors.max() <= 1.4


def params_for(config: Augmentation, seed: int, raw: torch.Tensor):  # type: ignore[no-untyped-def]
    return sample_augment_params(config, np.random.default_rng(seed), height=raw.shape[-2], width=raw.shape[-1])


def test_a_view_is_the_same_whatever_the_chunks() -> None:
    raw = torch.randint(0, 256, (2 * FRAMES_PER_CHUNK + 1, 3, 40, 52), dtype=torch.uint8)
    params = params_for(STRONG.model_copy(update={"jitter": 1.0, "blur": 1.0}), 3, raw)
    whole = make_view(raw, params, get_modality("rgb"), size=32, levels=COCLR_LEVELS)
    frames = [make_view(one[None], params, get_modality("rgb"), size=32, levels=COCLR_LEVELS) for one in raw]
    assert torch.allclose(whole, torch.cat(frames, dim=1), atol=1e-5)


def test_one_draw_serves_all_frames() -> None:
    raw = torch.randint(0, 256, (1, 3, 40, 52), dtype=torch.uint8).expand(6, -1, -1, -1)
    view = make_view(raw, params_for(STRONG, 1, raw), get_modality("rgb"), size=24, levels=COCLR_LEVELS)
    assert torch.equal(view, view[:, :1].expand_as(view))


def quantized_flow(x: float, y: float) -> torch.Tensor:
    code = [round((v + 20) * 255 / 40) for v in (x, y)]
    return torch.tensor(code, dtype=torch.uint8).view(1, 2, 1, 1).expand(2, 2, 40, 52)


def test_flip_negates_horizontal_flow_and_nothing_else() -> None:
    raw, flow = quantized_flow(5.1, -3.0), get_modality("flow")
    kept = make_view(raw, params_for(Augmentation(flip=0), 0, raw), flow, size=16, levels=COCLR_LEVELS)
    flipped = make_view(raw, params_for(Augmentation(flip=1), 0, raw), flow, size=16, levels=COCLR_LEVELS)
    assert torch.allclose(flipped[0], -kept[0]) and torch.allclose(flipped[1], kept[1])
    assert kept[0].mean() * 4 == pytest.approx(5.1, abs=0.1)


@pytest.mark.parametrize("levels", [FlowLevels(4.0), COCLR_LEVELS], ids=["format 2", "format 1"])
@pytest.mark.parametrize("name", ["flow", "motion"])
def test_a_flipped_view_is_the_view_of_the_mirrored_video(name: str, levels: FlowLevels) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.uniform(-levels.bound, levels.bound, (2, 2, 40, 40)).astype(np.float32)  # not resized: no rounding
    pixels[:, :, :10] = 0
    mirrored = pixels[..., ::-1] * np.array([-1, 1], np.float32).reshape(2, 1, 1)
    raw, other = (torch.from_numpy(levels.encode(values)) for values in (pixels, mirrored))
    flow, whole = get_modality(name), GeometryParams(0, 0, 1, 1, False)
    params = params_for(Augmentation(flip=0), 0, raw)
    kept, flipped = (replace(params, geometry=replace(whole, flip=flip)) for flip in (False, True))
    view = make_view(raw, flipped, flow, size=40, levels=levels)
    expected = make_view(other, kept, flow, size=40, levels=levels)
    assert view.std() > 0.1 and torch.allclose(view, expected, atol=2 * levels.step / 4)
    if levels.count == 255:  # levels are symmetric: no error at all, and what stands still stays exactly zero
        assert torch.allclose(view, expected, atol=1e-6) and (view[:, :, :8] == 0).all()


def test_resizing_keeps_the_magnitude_of_flow() -> None:
    raw = quantized_flow(8.0, 2.0)
    for size in (8, 40, 100):
        view = make_view(
            raw, params_for(Augmentation(flip=0), 0, raw), get_modality("flow"), size=size, levels=COCLR_LEVELS
        )
        assert view[0].mean() * 4 == pytest.approx(8.0, abs=0.1)


def test_coclr_flow_is_a_picture_of_128_y_x() -> None:
    values = dequantize(quantized_flow(8.0, -2.0), get_modality("flow", flow_style="coclr"), levels=COCLR_LEVELS) * 255
    assert values[0, :, 0, 0].round().tolist() == [128, 115, 178]


@pytest.mark.parametrize("name", ["residual_flow", "residual_motion"])
def test_a_residual_modality_is_minus_the_median_of_each_frame(name: str) -> None:
    raw = torch.randint(90, 170, (3, 2, 9, 11), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    found = compensate_camera(raw, get_modality(name), levels=COCLR_LEVELS)
    for frame, channel in np.ndindex(3, 2):
        plane = raw[frame, channel].numpy().astype(int)
        expected = plane - int(np.median(plane)) + 128
        assert (found[frame, channel].numpy() == expected).all()
    pan = compensate_camera(raw + 40, get_modality(name), levels=COCLR_LEVELS)
    assert torch.equal(pan, found), "the same motion, filmed by a camera that pans"
    assert compensate_camera(raw, get_modality("flow"), levels=COCLR_LEVELS) is raw
    fast = torch.zeros(1, 2, 3, 3, dtype=torch.uint8)
    fast[..., 0, 0] = 255
    assert compensate_camera(fast, get_modality(name), levels=COCLR_LEVELS).max() == 255, "clipped, not wrapped"


def test_rgbdiff_is_the_difference_of_neighbors() -> None:
    raw = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)  # three frames, then the three after them
    params = params_for(Augmentation(center=1.0, flip=0), 0, raw)
    view = make_view(raw, params, get_modality("rgbdiff"), size=32, levels=COCLR_LEVELS)
    slow = (raw[3:].float() - raw[:3].float()) / 255 / 0.1
    assert view.shape == (3, 3, 32, 32) and torch.allclose(view, slow.transpose(0, 1), atol=1e-4)


def test_pictures_are_normalized_with_imagenets_statistics() -> None:
    raw = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    params = params_for(Augmentation(center=1.0, flip=0), 0, raw)
    view = make_view(raw, params, get_modality("frame"), size=32, levels=COCLR_LEVELS)
    slow = TF.normalize(raw[0].float() / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert view.shape == (3, 32, 32) and torch.allclose(view, slow, atol=1e-5)
