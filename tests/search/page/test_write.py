"""The folder of the page: complete, safe, and written again without harm."""

import re
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.search.clusters import mean_vectors
from covid_cmsf.search.page.data import map_values, video_values
from covid_cmsf.search.page.saved import read_decisions, read_labels, write_decisions, write_labels
from covid_cmsf.search.page.write import PAGE_FILE, write_page
from tests.search.test_clusters import grouped_index

ASSETS = Path(__file__).parents[3] / "covid_cmsf" / "search" / "page" / "assets"


def test_nothing_in_the_page_names_another_place() -> None:
    scripts = [path for path in ASSETS.iterdir() if path.suffix in (".js", ".css", ".html")]
    assert len(scripts) > 15
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"https?://|//cdn|@import|XMLHttpRequest|innerHTML|\beval\(", text), path.name
        assert "fetch(" not in text or path.name == "api.js"
        assert path.suffix != ".js" or f"assets/{path.name}" in (ASSETS / "page.html").read_text()


@pytest.mark.slow
def test_a_page_is_written_again_and_other_folders_are_refused(page_index: Path, tmp_path: Path) -> None:
    args = ["search", "page", str(page_index), "-o", str(tmp_path / "page"), "--top", "3", "--no-copies"]
    for _ in range(2):
        result = CliRunner().invoke(app, args, catch_exceptions=False)
        assert result.exit_code == 0 and "48 videos" in result.output and "kB of pictures per video" in result.output
    names = {path.name for path in (tmp_path / "page" / "data").iterdir()}
    assert {"page.js", "videos.js", "map-fused-pca.js", "neighbors-rgb-0.js", "clusters-flow.js", "probe.js"} <= names
    assert len(list((tmp_path / "page" / "pictures").rglob("*.webp"))) == 96
    (tmp_path / "page" / PAGE_FILE).unlink()
    with pytest.raises(ValueError, match="not a page"):
        write_page(page_index, None, tmp_path / "page")


def test_places_on_the_map_keep_the_proportions() -> None:
    index = grouped_index()
    values = map_values(index, "rgb", "pca")
    places = torch.tensor([values["x"], values["y"]], dtype=torch.float32).T
    assert places.min() >= 0 and places.max() == 4095
    vectors, _ = mean_vectors(index, "rgb")
    centered = (vectors - vectors.mean(0)).double()
    exact = centered @ torch.linalg.svd(centered, full_matrices=False).Vh[:2].T
    ratio = torch.pdist(places.double()) / torch.pdist(exact)
    assert float(ratio.std() / ratio.mean()) < 0.01


def test_videos_without_classes_have_none() -> None:
    values = video_values(grouped_index(5))
    assert values["classes"] == [] == values["class_names"] and values["ids"] == ["v0", "v1", "v2", "v3", "v4"]


def test_labels_and_decisions_are_read_as_they_were_written(tmp_path: Path) -> None:
    labels = {"a": "x", "=b": 'quote " comma ,', "c/d e": "-1"}
    write_labels(tmp_path, labels)
    assert read_labels(tmp_path) == labels
    decisions = {("a", "=b"): "copy", ("a", "c"): "different"}
    write_decisions(tmp_path, decisions)
    assert read_decisions(tmp_path) == decisions
    (tmp_path / "labels.csv").write_text("name,label\na,b\n")
    with pytest.raises(ValueError, match="needs the columns video, label"):
        read_labels(tmp_path)
