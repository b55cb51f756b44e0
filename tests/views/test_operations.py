"""Every operation equals torchvision's (or NumPy's) on random input."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2.functional as TF

from covid_cmsf.views.augmentation import PRESETS, STRONG, Augmentation, preset
from covid_cmsf.views.blur import blur_, gaussian_weights
from covid_cmsf.views.color import brightness_, contrast_, gray_, hue_, jitter_, luma, saturation_
from covid_cmsf.views.draws import Color, Geometry, draw_geometry, draw_view
from covid_cmsf.views.geometry import cut
from covid_cmsf.views.making import CHUNK, make_view
from covid_cmsf.views.modalities import COCLR_FLOW, MODALITIES, modality, to_values


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
    color = Color(brightness=1.3, contrast=0.7, saturation=1.4, hue=0.1, order=(3, 1, 0, 2))
    slow = TF.adjust_hue(clip, 0.1)
    slow = TF.adjust_saturation(TF.adjust_brightness(TF.adjust_contrast(slow, 0.7), 1.3), 1.4)
    assert torch.allclose(jitter_(clip.clone(), color), slow, atol=1e-5)


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
    codes = torch.randint(0, 256, (2, 3, 60, 80), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    geometry = Geometry(top=6 / 60, left=8 / 80, height=30 / 60, width=40 / 80, flip=False)
    slow = TF.resized_crop(codes, 6, 8, 30, 40, [24, 24], antialias=True)
    assert (cut(codes, geometry, 24).int() - slow.int()).abs().max() <= 1
    values = codes.float()
    assert torch.allclose(cut(values, geometry, 24), TF.resized_crop(values, 6, 8, 30, 40, [24, 24]), atol=1e-3)


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_exist_for_all_kinds_and_any_size(name: str) -> None:
    for kind in ("rgb", "flow", "image"):
        assert preset(name, kind, size=40).size == 40
    with pytest.raises(ValueError, match="choose from strong, weak"):
        preset("stronk", "rgb")


def test_flow_has_no_color_operations_by_default() -> None:
    for name in ("strong", "weak", "std", "eval"):
        flow = preset(name, "flow")
        assert flow.jitter == flow.gray == flow.blur == 0
    assert not MODALITIES["flow"].colored and COCLR_FLOW.colored


def test_crops_have_the_asked_area_and_shape_and_fit() -> None:
    rng, settings = np.random.default_rng(0), Augmentation(scale=(0.2, 0.5))
    for _ in range(300):
        g = draw_geometry(settings, rng, height=240, width=320, flip=False)
        assert 0.19 < g.height * g.width < 0.51
        assert 0.74 < g.width * 320 / (g.height * 240) < 1.35
        assert g.top >= 0 and g.left >= 0 and g.top + g.height <= 1 + 1e-9 and g.left + g.width <= 1 + 1e-9


def test_one_attempt_squashes_the_whole_frame_about_as_often_as_coclr() -> None:
    rng, settings = np.random.default_rng(0), preset("coclr", "rgb")
    drawn = [draw_geometry(settings, rng, height=240, width=320, flip=False) for _ in range(3000)]
    assert 0.2 < drawn.count(Geometry(0, 0, 1, 1, False)) / 3000 < 0.35
    careful = [draw_geometry(STRONG, rng, height=240, width=320, flip=False) for _ in range(300)]
    assert Geometry(0, 0, 1, 1, False) not in careful


def test_the_center_square_is_deterministic() -> None:
    g = draw_geometry(preset("eval", "rgb"), np.random.default_rng(0), height=240, width=320, flip=False)
    assert (g.top * 240, g.left * 320, g.height * 240, g.width * 320) == pytest.approx((8, 48, 224, 224))


def test_probabilities_are_kept() -> None:
    rng = np.random.default_rng(0)
    draws = [draw_view(STRONG, rng, height=240, width=320) for _ in range(4000)]
    shares = [
        np.mean([d.geometry.flip for d in draws]),
        np.mean([d.color is not None for d in draws]),
        np.mean([d.gray is not None for d in draws]),
        np.mean([d.sigma is not None for d in draws]),
    ]
    assert shares == pytest.approx([0.5, 0.8, 0.2, 0.5], abs=0.03)
    factors = np.array([d.color.brightness for d in draws if d.color is not None])
    assert 0.6 <= factors.min() < 0.61 and 1.39 < factors.max() <= 1.4


def draw_of(settings: Augmentation, seed: int, codes: torch.Tensor):  # type: ignore[no-untyped-def]
    return draw_view(settings, np.random.default_rng(seed), height=codes.shape[-2], width=codes.shape[-1])


def test_a_view_is_the_same_whatever_the_chunks() -> None:
    codes = torch.randint(0, 256, (2 * CHUNK + 1, 3, 40, 52), dtype=torch.uint8)
    draw = draw_of(STRONG.model_copy(update={"jitter": 1.0, "blur": 1.0}), 3, codes)
    whole = make_view(codes, draw, modality("rgb"), size=32, flow_bound=20)
    frames = [make_view(one[None], draw, modality("rgb"), size=32, flow_bound=20) for one in codes]
    assert torch.allclose(whole, torch.cat(frames, dim=1), atol=1e-5)


def test_one_draw_serves_all_frames() -> None:
    codes = torch.randint(0, 256, (1, 3, 40, 52), dtype=torch.uint8).expand(6, -1, -1, -1)
    view = make_view(codes, draw_of(STRONG, 1, codes), modality("rgb"), size=24, flow_bound=20)
    assert torch.equal(view, view[:, :1].expand_as(view))


def flow_codes(x: float, y: float) -> torch.Tensor:
    code = [round((v + 20) * 255 / 40) for v in (x, y)]
    return torch.tensor(code, dtype=torch.uint8).view(1, 2, 1, 1).expand(2, 2, 40, 52)


def test_flip_negates_horizontal_flow_and_nothing_else() -> None:
    codes, flow = flow_codes(5.1, -3.0), modality("flow")
    kept = make_view(codes, draw_of(Augmentation(flip=0), 0, codes), flow, size=16, flow_bound=20)
    flipped = make_view(codes, draw_of(Augmentation(flip=1), 0, codes), flow, size=16, flow_bound=20)
    assert torch.allclose(flipped[0], -kept[0]) and torch.allclose(flipped[1], kept[1])
    assert kept[0].mean() * 4 == pytest.approx(5.1, abs=0.1)


def test_resizing_keeps_the_magnitude_of_flow() -> None:
    codes = flow_codes(8.0, 2.0)
    for size in (8, 40, 100):
        view = make_view(codes, draw_of(Augmentation(flip=0), 0, codes), modality("flow"), size=size, flow_bound=20)
        assert view[0].mean() * 4 == pytest.approx(8.0, abs=0.1)


def test_coclr_flow_is_a_picture_of_128_y_x() -> None:
    values = to_values(flow_codes(8.0, -2.0), modality("flow", flow_style="coclr"), flow_bound=20) * 255
    assert values[0, :, 0, 0].round().tolist() == [128, 115, 178]


def test_rgbdiff_is_the_difference_of_neighbors() -> None:
    codes = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)  # three frames, then the three after them
    draw = draw_of(Augmentation(center=1.0, flip=0), 0, codes)
    view = make_view(codes, draw, modality("rgbdiff"), size=32, flow_bound=20)
    slow = (codes[3:].float() - codes[:3].float()) / 255 / 0.1
    assert view.shape == (3, 3, 32, 32) and torch.allclose(view, slow.transpose(0, 1), atol=1e-4)


def test_pictures_are_normalized_with_imagenets_statistics() -> None:
    codes = torch.randint(0, 256, (1, 3, 32, 32), dtype=torch.uint8)
    draw = draw_of(Augmentation(center=1.0, flip=0), 0, codes)
    view = make_view(codes, draw, modality("frame"), size=32, flow_bound=20)
    slow = TF.normalize(codes[0].float() / 255, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    assert view.shape == (3, 32, 32) and torch.allclose(view, slow, atol=1e-5)
