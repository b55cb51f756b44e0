"""`views show` and the view configurations."""

from pathlib import Path

import cv2
import pytest

from covid_cmsf.clips import ClipStore
from covid_cmsf.views.config import ViewConfig, load_view_config
from covid_cmsf.views.dataset import ViewDataset
from covid_cmsf.views.preview import save_view_preview
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


@pytest.mark.slow
def test_the_page_shows_both_views_of_all_modalities(tmp_path: Path) -> None:
    make_ucf(tmp_path / "videos", classes=1, groups=2, num_frames=12)
    assert preprocess(tmp_path / "videos", tmp_path / "clips").returncode == 0
    store = ClipStore.open(tmp_path / "clips")
    config = ViewConfig(modalities=("rgb", "flow", "rgbdiff", "frame"), length=6, size=32, frame_size=40)
    save_view_preview(ViewDataset(store, store.records, config, seed=0), [0, 1], tmp_path / "page.png", num_columns=4)
    picture = cv2.imread(str(tmp_path / "page.png"))
    assert picture.shape == (2 * 4 * 2 * 110, 150 + 4 * 110, 3) and picture.std() > 20
