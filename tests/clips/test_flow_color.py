"""The color wheel and the contact sheet."""

import colorsys
from pathlib import Path

import cv2
import numpy as np
import pytest

from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.contact_sheet import save_contact_sheet
from covid_cmsf.clips.flow_codec import COCLR_LEVELS, FlowLevels
from covid_cmsf.clips.flow_color import color_wheel, color_wheel_image, draw_flow, flow_to_rgb


def one(x: float, y: float, scale: float = 1.0) -> tuple[int, int, int]:
    return tuple(int(v) for v in flow_to_rgb(np.array([[[x]], [[y]]], np.float32), scale)[0, 0])  # type: ignore[return-value]


def test_the_wheel_has_55_hues_and_closes() -> None:
    wheel = color_wheel()
    assert wheel.shape == (55, 3) and wheel.min() == 0 and wheel.max() == 1
    assert np.abs(np.diff(np.concatenate([wheel, wheel[:1]]), axis=0)).max() <= 0.26


def test_directions_have_the_usual_colors() -> None:
    assert one(0, 0) == (255, 255, 255), "no motion is white"
    hues = {name: colorsys.rgb_to_hsv(*(v / 255 for v in one(*xy)))[0] * 360 for name, xy in
            {"right": (1, 0), "left": (-1, 0), "down": (0, 1), "up": (0, -1)}.items()}  # fmt: skip
    assert hues["right"] < 10 or hues["right"] > 350, "right is red"
    assert 170 < hues["left"] < 200 and 40 < hues["down"] < 80 and 240 < hues["up"] < 290


def test_color_grows_with_speed_and_darkens_beyond_the_scale() -> None:
    assert one(0.5, 0)[1] > one(0.9, 0)[1]
    assert one(2, 0)[0] < one(1, 0)[0]
    assert color_wheel_image(9)[4, 4].tolist() == [255, 255, 255]


@pytest.mark.parametrize("levels", [FlowLevels(5.0), FlowLevels(0.25), COCLR_LEVELS])
def test_still_areas_are_white_and_motion_is_not(levels: FlowLevels) -> None:
    """Also where the codec was off by a level, and with 256 levels, which have none for zero."""
    codes = np.full((3, 2, 8, 8), 128, np.uint8)
    codes[:, :, :2, :4] = 127
    codes[:, 0, :, 4:] = 160
    images, scale = draw_flow(levels.decode(codes), levels)
    assert all((image[:, :4] == 255).all() and (image[:, 4:].min(axis=-1) < 60).all() for image in images)
    assert scale == pytest.approx(32 * levels.step, rel=0.05)
    still, scale = draw_flow(levels.decode(np.full((3, 2, 8, 8), 128, np.uint8)), levels)
    assert (np.stack(still) == 255).all() and scale == levels.bound / 20


def test_the_contact_sheet_is_a_picture_with_something_on_it(store: ClipStore, tmp_path: Path) -> None:
    save_contact_sheet(store, store.records[:2], tmp_path / "page.png", num_columns=4)
    picture = cv2.imread(str(tmp_path / "page.png"))
    assert picture.shape[1] == 760 and picture.shape[0] > 400 and picture.std() > 20
