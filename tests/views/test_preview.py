"""`views show` and the view configurations."""

import logging
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from covid_cmsf.clips import ClipStore
from covid_cmsf.clips.flow_color import color_wheel_image
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.views.config import ViewConfig, load_view_config
from covid_cmsf.views.dataset import SampleKey, ViewDataset
from covid_cmsf.views.preview import PreviewRow, _draw_row, make_row, save_view_preview, warn_of_padding
from tests.factories import make_ucf
from tests.preprocess.commands import preprocess

CONFIGS = sorted((Path(__file__).parents[2] / "configs" / "views").rglob("*.yaml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_view_configuration_loads(path: Path) -> None:
    assert load_view_config(path, ["views.length=4", "size=32"]).length == 4
    assert "covid-cmsf views show" in path.read_text()


def test_there_are_view_configurations() -> None:
    assert len(CONFIGS) >= 3
    assert load_view_config(None, ["pairing=coclr"]).pairing == "coclr"


def test_mistakes_in_the_section_are_named(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text("views: {lenght: 8}\nother: 1\n")
    with pytest.raises(ValueError, match="unknown key 'lenght'; did you mean 'length'"):
        load_view_config(tmp_path / "run.yaml")
    (tmp_path / "run.yaml").write_text("views: 3\n")
    with pytest.raises(ValueError, match="section views must be a mapping, not 3"):
        load_view_config(tmp_path / "run.yaml")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ClipStore:
    root = tmp_path_factory.mktemp("preview")
    make_ucf(root / "videos", classes=1, groups=2, num_frames=12)
    assert preprocess(root / "videos", root / "clips").returncode == 0
    return ClipStore.open(root / "clips")


@pytest.mark.slow
def test_the_page_shows_both_views_of_all_modalities_with_whole_labels(store: ClipStore, tmp_path: Path) -> None:
    config = ViewConfig(modalities=("rgb", "flow", "rgbdiff", "frame"), length=6, size=32, frame_size=40)
    save_view_preview(ViewDataset(store, store.records, config, seed=0), [0, 1], tmp_path / "page.png", num_columns=4)
    picture = cv2.imread(str(tmp_path / "page.png"))
    assert picture.shape == (2 * 4 * 2 * 110, 200 + 4 * 110, 3) and picture.std() > 20
    labels = picture[:, :200]
    assert (labels[:, :5] == 255).all() and (labels[:, 195:] == 255).all(), "a label is cut"
    assert all((labels[110 * row : 110 * (row + 1)] < 100).any() for row in range(16)), "a row has no label"


@pytest.mark.slow
def test_the_picture_is_no_wider_than_its_frames(store: ClipStore, tmp_path: Path) -> None:
    data = ViewDataset(store, store.records, ViewConfig(length=3, size=32, frame_size=40), seed=0)
    save_view_preview(data, [0], tmp_path / "page.png", num_columns=8)
    assert cv2.imread(str(tmp_path / "page.png")).shape[1] == 200 + 3 * 110


@pytest.mark.slow
def test_the_drawn_frames_are_those_that_are_read(store: ClipStore, monkeypatch: pytest.MonkeyPatch) -> None:
    config = ViewConfig(modalities=("rgb",), length=4, size=32, pairing="coclr")
    data, key = ViewDataset(store, store.records, config, seed=5), SampleKey(1, 2, 0)
    read: set[int] = set()

    def read_raw(record: ClipRecord, modality: str, frame_indices: list[int]) -> torch.Tensor:
        read.update(frame_indices)
        return ClipStore.read_raw(store, record, modality, frame_indices)

    monkeypatch.setattr(store, "read_raw", read_raw)
    data[key]
    assert read == {number for view in data.drawn_views(key) for number in view.frame_indices}


@pytest.mark.slow
def test_a_row_names_strength_frames_and_scale(store: ClipStore) -> None:
    config = ViewConfig(modalities=("rgb", "flow", "frame"), length=6, size=32, frame_size=40, pairing="weak_strong")
    data, key = ViewDataset(store, store.records, config, seed=3), SampleKey(0, 0, 1)
    sample, (online, target) = data[key], data.drawn_views(key)
    assert (online.preset, target.preset) == ("strong", "weak") and len(online.frame_indices) == 6
    rgb, flow, frame = (
        make_row("a/" + 60 * "x", "online", sample.views[0][modality.name], modality, online, 3, sample.levels)
        for modality in data.modalities
    )
    assert rgb.label.endswith("rgb, online: strong") and max(map(len, rgb.label.split("\n"))) <= 29
    assert rgb.frame_numbers == [online.frame_indices[i] for i in (0, 2, 5)] and len(rgb.images) == 3
    assert "full color: " in flow.label and flow.scale >= sample.levels.bound / 20 and rgb.scale == 0
    assert frame.frame_numbers == [online.single_frame]


@pytest.mark.slow
def test_clips_longer_than_the_video_are_warned_of(
    store: ClipStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("covid_cmsf"), "propagate", True)
    for length, warned in ((11, False), (12, True), (200, True)):
        caplog.clear()
        warn_of_padding(ViewDataset(store, store.records, ViewConfig(length=length, size=32)), [0, 1])
        assert bool(caplog.messages) == warned
    assert "a clip spans 200 frames" in caplog.text and "has 11: frames are repeated (pad_mode pad)" in caplog.text


def test_frames_have_their_numbers_and_flow_has_the_color_wheel() -> None:
    images = [np.full((8, 8, 3), 255, np.uint8)] * 2
    for scale in (0.0, 1.5):
        (cells,) = Figure().subplots(1, 3, squeeze=False)
        _draw_row(cells, PreviewRow("a label", images, [7, 12], scale))
        assert [[text.get_text() for text in cell.texts] for cell in cells] == [["7", "a label"], ["12"], []]
        wheels = [inset.images[0].get_array() for inset in cells[0].child_axes]
        assert len(wheels) == (scale > 0) and all((one == color_wheel_image(64)).all() for one in wheels)
