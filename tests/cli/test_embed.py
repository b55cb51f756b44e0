"""`covid-cmsf embed`: tables of embeddings of video files."""

import builtins
import csv
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as parquet
import pytest
from typer.testing import CliRunner

import covid_cmsf as cc
from covid_cmsf import embeddings as embeddings_module
from covid_cmsf.cli.app import app
from covid_cmsf.evaluation.features.file import save_features
from covid_cmsf.evaluation.features.shards import ShardStore
from tests.evaluation.factories import small_checkpoint, synthetic_features
from tests.factories import moving_square, write_video


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("embed")
    for number in range(3):
        write_video(folder / "videos" / "a" / f"v{number}.mp4", moving_square(20, seed=number))
    small_checkpoint(folder / "rgb.safetensors")
    return folder


def embed(*args: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["embed", *map(str, args)], catch_exceptions=False)
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.slow
def test_every_format_has_the_same_rows_and_those_of_embed(folder: Path, tmp_path: Path) -> None:
    for name in ("x.parquet", "x.npy", "y.csv"):
        said = embed(folder / "videos", "--weights", folder / "rgb.safetensors", "-o", tmp_path / name)
        assert "3 videos" in said
    encoder = cc.load_encoder(folder / "rgb.safetensors")
    expected = cc.embed(sorted((folder / "videos").rglob("*.mp4")), encoder).numpy()
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), expected)
    ids = ["a/v0", "a/v1", "a/v2"]
    table = parquet.read_table(tmp_path / "x.parquet")
    assert table["id"].to_pylist() == ids
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), expected)
    rows = list(csv.DictReader((tmp_path / "y.csv").open()))
    assert [row["id"] for row in rows] == [row["id"] for row in csv.DictReader((tmp_path / "x.csv").open())] == ids
    files = [str(folder / "videos" / "a" / f"v{number}.mp4") for number in range(3)]
    assert [row["file"] for row in csv.DictReader((tmp_path / "x.csv").open())] == files
    assert [row["file"] for row in rows] == table["file"].to_pylist() == files
    values = [[float(value) for name, value in row.items() if name not in ("id", "file")] for row in rows]
    np.testing.assert_array_equal(np.array(values, np.float32), expected)


@pytest.mark.slow
def test_windows_have_times_and_unreadable_files_are_listed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.mp4").write_bytes(b"no video")
    video = folder / "videos" / "a" / "v1.mp4"
    weights = folder / "rgb.safetensors"
    embed(video, tmp_path / "broken.mp4", "--weights", weights, "-o", tmp_path / "w.csv", "--per-window", code=3)
    rows = list(csv.DictReader((tmp_path / "w.csv").open()))
    assert len(rows) == 4 and {row["id"] for row in rows} == {row["file"] for row in rows} == {str(video)}
    assert [float(row["start"]) for row in rows] == pytest.approx([0, 0.2, 0.36, 0.56])
    assert all(float(row["end"]) - float(row["start"]) == pytest.approx(6 / 25) for row in rows)


def test_a_features_file_becomes_a_table_with_classes_sources_and_subsets(tmp_path: Path) -> None:
    features = synthetic_features()
    save_features(tmp_path / "rgb.features", features)
    for name in ("x.parquet", "x.npy", "y.csv"):
        assert f"{len(features.videos)} videos" in embed(tmp_path / "rgb.features", "-o", tmp_path / name)
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), features.features.numpy())
    table = parquet.read_table(tmp_path / "x.parquet")
    np.testing.assert_array_equal(np.array(table["embedding"].to_pylist(), np.float32), features.features.numpy())
    rows = list(csv.DictReader((tmp_path / "y.csv").open()))
    names = ("id", "class", "source", "subset")
    beside = list(csv.DictReader((tmp_path / "x.csv").open()))
    assert [[row[name] for name in names] for row in rows] == [list(row.values()) for row in beside]
    assert [row["class"] for row in rows] == table["class"].to_pylist()
    assert [row["class"] for row in rows] == [features.videos.class_names[one] for one in features.videos.labels]
    assert [row["subset"] for row in rows] == list(features.videos.subsets)
    assert [row["source"] for row in rows] == list(features.videos.sources)
    store = tmp_path / "data" / "clips"
    for video_id in features.videos.ids:
        path = store / "rgb" / f"{video_id}.mp4"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (store / "store.json").touch()
    named = replace(features, provenance=features.provenance.model_copy(update={"clips_path": "data/clips"}))
    save_features(tmp_path / "named.features", named)
    embed(tmp_path / "named.features", "-o", tmp_path / "named.csv")
    files = [row["file"] for row in csv.DictReader((tmp_path / "named.csv").open())]
    assert files == [str(store / "rgb" / f"{video_id}.mp4") for video_id in features.videos.ids]
    (store / "rgb" / f"{features.videos.ids[0]}.mp4").unlink()
    with pytest.raises(FileNotFoundError, match=r"is missing: .*clips is not the store of these features"):
        embed(tmp_path / "named.features", "-o", tmp_path / "lost.csv")
    for arguments in ([tmp_path], [tmp_path / "rgb.features", tmp_path / "rgb.features"]):
        with pytest.raises(ValueError, match="videos need --weights"):
            embed(*arguments, "-o", tmp_path / "z.csv")
    with pytest.raises(ValueError, match="videos need --weights"):
        embed(tmp_path / "rgb.features", "--per-window", "-o", tmp_path / "z.csv")


# One video per piece, and a long pause after the second, so that the signal hits the middle.
SLOW = """
import time
from dataclasses import replace
from covid_cmsf import embeddings
from covid_cmsf.cli import main

def slowly(self, number, shard, save=embeddings.ShardStore.save):
    save(self, number, shard)
    time.sleep(60 if number == 1 else 0)

embeddings.CHUNK, embeddings.ShardStore.save = 1, slowly
main()
"""


@pytest.mark.slow
def test_a_killed_command_goes_on_and_embeds_no_video_twice(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(folder / "videos", tmp_path / "videos")
    args = [tmp_path / "videos", "--weights", folder / "rgb.safetensors", "--per-window", "-o", tmp_path / "killed.csv"]
    process = subprocess.Popen([sys.executable, "-c", SLOW, "embed", *map(str, args)])
    pieces = [tmp_path / ".killed.csv.shards" / f"{number:06d}.safetensors" for number in range(2)]
    deadline = time.monotonic() + 100
    while not pieces[1].exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=30) == -signal.SIGKILL
    assert pieces[1].exists() and not (tmp_path / "killed.csv").exists()
    write_video(tmp_path / "videos" / "a" / "v1.mp4", moving_square(20, seed=9))  # replaced: embedded again
    saved: list[int] = []
    original = ShardStore.save

    def save(self: ShardStore, number: int, shard: Any) -> None:
        saved.append(number)
        original(self, number, shard)

    monkeypatch.setattr(embeddings_module, "CHUNK", 1)
    monkeypatch.setattr(ShardStore, "save", save)
    embed(*args)
    assert saved == [1, 2] and not pieces[0].parent.exists()
    embed(*args[:-1], tmp_path / "whole.csv")
    assert (tmp_path / "killed.csv").read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_wrong_use_is_refused_before_anything_is_embedded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = ("--weights", folder / "rgb.safetensors")
    with pytest.raises(ValueError, match="tables are written as .parquet, .npy, .csv"):
        embed(folder / "videos", *weights, "-o", tmp_path / "x.txt")
    with pytest.raises(FileNotFoundError, match="no folder"):
        embed(folder / "videos", *weights, "-o", tmp_path / "absent" / "x.csv")
    with pytest.raises(FileNotFoundError, match="no video file or folder"):
        embed(tmp_path / "absent.mp4", *weights, "-o", tmp_path / "x.csv")
    (tmp_path / "x.csv").touch()
    with pytest.raises(FileExistsError, match="x.csv exists; --force replaces it"):
        embed(folder / "videos", *weights, "-o", tmp_path / "x.npy")
    original = builtins.__import__

    def without_pyarrow(name: str, *args: Any, **options: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return original(name, *args, **options)

    monkeypatch.setattr(builtins, "__import__", without_pyarrow)
    with pytest.raises(ValueError, match=r"pip install 'covid-cmsf\[parquet\]'"):
        embed(folder / "videos", *weights, "-o", tmp_path / "x.parquet")
