"""The color wheel and the contact sheet."""

import colorsys
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.contact_sheet import TITLE_LINE, draw_rows, make_rows, make_title, save_contact_sheet
from covid_cmsf.clips.flow_codec import COCLR_LEVELS, FlowLevels
from covid_cmsf.clips.flow_color import color_wheel, color_wheel_image, draw_flow, flow_to_rgb
from tests.factories import make_ucf
from tests.preprocess.commands import preprocess


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
    assert picture.shape[1] == 890 and picture.shape[0] > 400 and picture.std() > 20
    labels = picture[:, :100]
    assert (labels[:, :4] == 255).all() and (labels < 100).any(), "a label is cut, or there is none"


@pytest.mark.slow
def test_each_kind_of_flow_has_its_own_scale(tmp_path: Path) -> None:
    make_ucf(tmp_path / "videos", classes=1, groups=1, num_frames=12)
    ended = preprocess(tmp_path / "videos", tmp_path / "clips", "--modalities", "rgb,flow,motion")
    assert ended.returncode == 0, ended.stderr
    both = ClipStore.open(tmp_path / "clips")
    record = both.records[0]
    rgb, flow, motion = rows = make_rows(both, record, 3)
    for row in (flow, motion):
        decoded = both.read(record, row.modality, row.frame_indices).numpy()
        assert row.scale == draw_flow(decoded, both.flow_levels(record))[1]
    assert rgb.scale == 0 and 0 < flow.scale != motion.scale > 0
    area = Figure().subfigures(1, 1, squeeze=False)[0, 0]
    draw_rows(area, rows, 4, left=0.1, top=0.9)
    cells = np.reshape(np.array(area.axes), (3, 4))
    numbers = [str(index) for index in rgb.frame_indices]
    assert numbers[0] == "0" and numbers[-1] == str(record.num_flow - 1)
    for row, name, line in zip((rgb, flow, motion), ("rgb", "flow", "motion"), cells, strict=True):
        *texts, last = [[text.get_text() for text in cell.texts] for cell in line]
        scale = f"\nfull color:\n{row.scale:.2g} px per frame" if name != "rgb" else ""
        assert texts == [[numbers[0], name + scale], *([number] for number in numbers[1:])] and last == []
        assert [len(cell.child_axes) for cell in line] == [int(name != "rgb"), 0, 0, 0]  # the color wheel


@pytest.mark.parametrize("video_id", ["a/b", "W" * 400, "a b-c/" * 60, "$x$_" * 60])
@pytest.mark.parametrize("width", [3.0, 16.3])
def test_titles_of_long_names_are_whole_and_fit(store: ClipStore, video_id: str, width: float) -> None:
    lines = make_title(replace(store.records[0], video_id=video_id), width)
    assert "".join(lines).replace(" ", "").startswith(repr(video_id).replace(" ", "")) and lines[-1].endswith("fps")
    figure = Figure(figsize=(width, 9), dpi=100)
    text = figure.text(0.08 / width, 1, "\n".join(lines), fontsize=9, va="top", parse_math=False)
    box = text.get_window_extent(FigureCanvasAgg(figure).get_renderer())  # type: ignore[no-untyped-call]
    assert box.x1 < 100 * width and box.height < 100 * TITLE_LINE * (len(lines) + 0.5)
