"""`covid-cmsf search` from features files to neighbors and clusters."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import covid_cmsf as cc
from covid_cmsf.cli.app import app
from covid_cmsf.commands import extract_features
from covid_cmsf.evaluation.features.file import save_features
from covid_cmsf.training.run_dir import lock_dir
from tests.evaluation.factories import small_checkpoint
from tests.factories import make_ucf, moving_square, write_video
from tests.preprocess.commands import preprocess
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
    assert set(rows[0]) == {"video", "score", "start", "end", "rgb", "flow", "found by"}
    assert "video,score" in search("query", index, "v4", "--csv") and "most like v4" in search("query", index, "v4")


def test_weights_of_the_fusion_are_those_of_the_command_line(index: Path, tmp_path: Path) -> None:
    def scores(folder: Path, *options: object) -> dict[str, list[float]]:
        rows = json.loads(search("query", folder, "v4", "--json", *options))
        return {row["video"]: [row[name] for name in ("score", "rgb", "flow")] for row in rows}

    for score, rgb, flow in scores(index, "--fuse", "rgb=3,flow=1").values():
        assert score == pytest.approx(0.75 * rgb + 0.25 * flow, abs=2e-4)
    assert scores(index, "--fuse", "flow=1") == scores(index, "--modality", "flow")
    search("index", tmp_path / "rgb", tmp_path / "flow", "-o", tmp_path / "weighted", "--fuse", "rgb=3, flow=1")
    assert scores(tmp_path / "weighted") == scores(index, "--fuse", "rgb=3,flow=1") != scores(index)
    found = cc.search_videos(index, "v4", weights={"rgb": 3, "flow": 1})
    assert [one.video_id for one in found] == list(scores(tmp_path / "weighted"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fuse", "rgb"], "'rgb' in 'rgb': write every NAME=WEIGHT once"),
        (["--fuse", "rgb=1,rgb=2"], "'rgb=2' in 'rgb=1,rgb=2'"),
        (["--fuse", "rgb=-1"], "weights of 0 or more"),
        (["--fuse", "rgb=nan"], "weights of 0 or more"),
        (["--fuse", "rgb=0"], "at least one weight must be above 0"),
        (["--fuse", "image=1"], "a weight for 'image'; this index has flow, rgb"),
        (["--fuse", "rgb=1", "--modality", "rgb"], "--fuse is for --modality fused, not for rgb"),
    ],
)
def test_impossible_weights_are_refused(index: Path, options: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        search("query", index, "v4", *options)


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
    with pytest.raises(ValueError, match="no video 'nothing' in this index of 8 videos; there is no such file either"):
        search("query", index, "nothing")
    with pytest.raises(ValueError, match="--weights says which encoders"):
        search("index", tmp_path, "-o", tmp_path / "new")
    with pytest.raises(ValueError, match="--out INDEX is missing"):
        search("index", tmp_path / "rgb")
    with pytest.raises(ValueError, match="a weight for 'image'"):
        search("index", tmp_path / "rgb", "-o", tmp_path / "new", "--fuse", "image=1")
    with pytest.raises(ValueError, match="--update takes a folder of videos or clips only"):
        search("index", tmp_path, "--update", "-o", index, "--fuse", "rgb=1")
    with pytest.raises(FileNotFoundError, match="no features file, clip store or folder of videos"):
        search("index", tmp_path / "absent", "-o", tmp_path / "new")
    with pytest.raises(FileNotFoundError, match="are not where they were; name them with --clips"):
        search("duplicates", index)


def test_the_same_command_again_finds_the_index_there(index: Path, tmp_path: Path) -> None:
    command = ("index", tmp_path / "rgb", tmp_path / "flow", "-o", index)
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    assert "already there" in search(*command)
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before
    (index / "videos.csv").write_bytes(before["videos.csv"][:-3])
    with pytest.raises(ValueError, match=r"videos\.csv is missing or was changed"):
        search(*command)


def test_an_index_whose_files_were_being_moved_is_finished(index: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in index.iterdir()}
    (index / ".new").mkdir()
    (index / "index.json").rename(index / ".new" / "index.json")
    search("index", tmp_path / "rgb", tmp_path / "flow", "-o", index)
    assert {path.name: path.read_bytes() for path in index.iterdir()} == before


def test_two_processes_never_write_one_index(tmp_path: Path, index: Path) -> None:
    (tmp_path / "new").mkdir()
    with lock_dir(tmp_path / "new"), pytest.raises(ValueError, match="another process is writing to"):
        search("index", tmp_path / "rgb", "-o", tmp_path / "new")
    with lock_dir(index), pytest.raises(ValueError, match="another process is writing to"):
        search("index", tmp_path, "--update", "-o", index)


def test_a_file_can_be_no_query_where_the_weights_are_lost(index: Path, tmp_path: Path) -> None:
    video = write_video(tmp_path / "my.mp4", moving_square(10))
    with pytest.raises(ValueError, match="no encoder for flow, rgb, so only its own videos can be queries"):
        search("query", index, video)


@pytest.mark.slow
def test_from_video_files_to_a_page_of_results(tmp_path: Path) -> None:
    for number in range(3):
        write_video(tmp_path / "videos" / f"v{number}.mp4", moving_square(30, seed=number))
    write_video(tmp_path / "videos" / "copy.mp4", moving_square(30, seed=1)[:, :, ::-1])
    weights = small_checkpoint(tmp_path / "rgb.safetensors")
    videos, index = tmp_path / "videos", tmp_path / "index"
    command = ("index", videos, "--weights", weights, "--windows", 2, "-o", index)
    assert "4 videos, 8 windows of rgb" in search(*command)
    assert "already there" in search(*command)
    (tmp_path / "v1.mp4").write_bytes((videos / "v1.mp4").read_bytes())
    page = tmp_path / "results.html"
    rows = json.loads(
        search("query", index, tmp_path / "v1.mp4", "--top", 2, "--json", "--html", page).splitlines()[-1]
    )
    assert rows[0]["video"] == "v1" and rows[0]["score"] == pytest.approx(1, abs=1e-3)
    text = page.read_text()
    assert text.count("data:image/webp") == 3 and "http" not in text.replace("http-equiv", "")
    found = json.loads(search("duplicates", index, "--json").splitlines()[-1])
    assert [(row["first"], row["second"], row["mirrored"]) for row in found] == [("copy", "v1", True)]
    write_video(videos / "v9.mp4", moving_square(30, seed=9))
    with pytest.raises(FileExistsError, match=r"index\.json exists, of other, or changed, videos"):
        search(*command)
    assert "1 videos added" in search("index", videos, "--update", "-o", index)
    with pytest.raises(ValueError, match="--update takes a folder"):
        search("index", videos, "--update", "--weights", weights, "-o", index)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["files", "store"])
def test_an_index_of_videos_that_were_replaced_is_not_taken_for_theirs(tmp_path: Path, kind: str) -> None:
    source = make_ucf(tmp_path / "videos", num_frames=12)
    if kind == "store":
        assert preprocess(source, tmp_path / "clips", "--modalities", "rgb").returncode == 0
        source = tmp_path / "clips"
    weights = small_checkpoint(tmp_path / "rgb.safetensors")
    command = ("index", source, "--weights", weights, "--windows", 1, "-o", tmp_path / "index")
    assert "6 videos" in search(*command)
    assert "already there" in search(*command)
    file = next(path for path in sorted(source.rglob("*")) if path.suffix in (".avi", ".mp4"))
    os.utime(file, (0, 0))
    with pytest.raises(FileExistsError, match="of other, or changed, videos or of other encoders; --force replaces it"):
        search(*command)
    assert "6 videos" in search(*command, "--force")
    assert "already there" in search(*command)


@pytest.mark.slow
def test_a_project_is_indexed_and_searched_by_its_folder(tmp_path: Path) -> None:
    preprocessed = preprocess(make_ucf(tmp_path / "videos", num_frames=12), tmp_path / "clips")
    assert preprocessed.returncode == 0, preprocessed.stderr
    (tmp_path / "project.json").write_text("{}")
    (tmp_path / "features").mkdir()
    weights = small_checkpoint(tmp_path / "rgb.safetensors")
    extract_features(weights, tmp_path / "clips", tmp_path / "features" / "rgb.features", device="cpu")
    assert "6 videos" in search("index", tmp_path)
    file = tmp_path / "videos" / "Archery" / "v_Archery_g02_c01.avi"
    rows = json.loads(search("query", tmp_path, file, "--json"))
    assert rows[0]["video"] == "Archery/v_Archery_g02_c01"
    search("duplicates", tmp_path, "--json")
