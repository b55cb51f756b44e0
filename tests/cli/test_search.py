"""`covid-cmsf search` from features files to neighbors and clusters."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.evaluation.features.file import save_features
from tests.search.factories import windowed_features


def search(*args: object) -> str:
    done = CliRunner().invoke(app, ["search", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def index(tmp_path: Path) -> Path:
    rgb, flow = windowed_features(8), windowed_features(8, num_values=5, seed=1)
    protocol = flow.provenance.eval_protocol.model_copy(update={"modality": "flow"})
    flow = replace(flow, provenance=flow.provenance.model_copy(update={"eval_protocol": protocol}))
    for name, features in (("rgb", rgb), ("flow", flow)):
        save_features(tmp_path / name, features)
    assert "8 videos, 15 windows of flow, 15 windows of rgb" in search(
        "index", tmp_path / "rgb", tmp_path / "flow", "-o", tmp_path / "index"
    )
    return tmp_path / "index"


def test_the_most_similar_videos_are_listed_without_the_query(index: Path) -> None:
    rows = json.loads(search("query", index, "v4", "--top", 3, "--json"))
    assert len(rows) == 3 and "v4" not in {row["video"] for row in rows}
    assert set(rows[0]) == {"video", "score", "start", "end", "rgb", "flow"}
    assert "video,score" in search("query", index, "v4", "--csv") and "most like v4" in search("query", index, "v4")


def test_every_video_is_in_one_cluster(index: Path) -> None:
    rows = json.loads(search("clusters", index, "--number", 2, "--json"))
    assert sorted(row["video"] for row in rows) == [f"v{i}" for i in range(8)]
    assert {row["cluster"] for row in rows} == {1, 2} and "2 clusters" in search("clusters", index, "--number", 2)


def test_wrong_use_is_refused_before_anything_is_written(index: Path, tmp_path: Path) -> None:
    with pytest.raises(FileExistsError, match="--force replaces it"):
        search("index", tmp_path / "rgb", "-o", index)
    with pytest.raises(ValueError, match="one file per modality"):
        search("index", tmp_path / "rgb", tmp_path / "rgb", "-o", tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(ValueError, match="no video 'nothing'"):
        search("query", index, "nothing")
