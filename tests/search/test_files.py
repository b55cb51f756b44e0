"""Indexes of video files and clip stores with their encoders, and video files as queries."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.evaluation.features import extract
from covid_cmsf.evaluation.features import processes as processes_module
from covid_cmsf.search.build import Extraction, add_to_index, index_features, index_videos
from covid_cmsf.search.encoders import open_encoder
from covid_cmsf.search.files import FileEmbedder, embed_file
from covid_cmsf.search.index import build_index, load_encoders, load_index, save_index
from covid_cmsf.search.project import clips_folder, index_folder, source_folder
from covid_cmsf.search.query import search
from tests.evaluation.factories import small_checkpoint
from tests.factories import moving_square, write_video
from tests.search.factories import quick_encoder, windowed_features

NUM_FRAMES = 40  # 1.6 seconds


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(5):
        write_video(folder / f"day{number % 2}" / f"v{number}.mp4", moving_square(NUM_FRAMES, seed=number))
    return folder


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("weights")
    return [small_checkpoint(folder / f"{name}.safetensors", name) for name in ("rgb", "flow")]


@pytest.fixture(scope="module")
def index(videos: Path, weights: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("search") / "index"
    _, skipped = index_videos(videos, [quick_encoder(path) for path in weights], folder)
    assert skipped == ()
    return folder


@pytest.mark.slow
def test_an_indexed_video_given_as_a_file_finds_itself_first(index: Path, videos: Path, tmp_path: Path) -> None:
    embedder = FileEmbedder(index)
    opened = embedder.index
    for number in (1, 4):
        copy = shutil.copy(videos / f"day{number % 2}" / f"v{number}.mp4", tmp_path / "another-name.mp4")
        best = search(opened, embedder.embed(copy).vectors, top=1)[0]
        assert opened.videos[best.video].video_id == f"day{number % 2}/v{number}"
        assert best.score == pytest.approx(1, abs=1e-4) and set(best.by_modality) == {"rgb", "flow"}


@pytest.mark.slow
def test_processes_that_share_the_videos_write_the_index_of_one(
    videos: Path, weights: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extract, "SHARD_SIZE", 2)  # 5 videos are 3 shards
    shared: list[int] = []
    real = processes_module.run_on_devices

    def counted(work: Any, shards: Any, devices: Any, **options: Any) -> Any:
        shared.append(min(len(shards), len(devices)))
        return real(work, shards, devices, **options)

    monkeypatch.setattr(extract, "run_on_devices", counted)
    for count in (1, 2):
        how = Extraction(device="cpu", num_processes=count)
        index_videos(videos, [quick_encoder(weights[0])], tmp_path / str(count), extraction=how)
    assert shared == [1, 2]
    one, two = (
        {path.name: path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()} for name in "12"
    )
    assert one == two and len(one) >= 3


@pytest.mark.slow
def test_the_index_needs_nothing_but_its_own_folder(index: Path, videos: Path, tmp_path: Path) -> None:
    moved = tmp_path / "a" / "b" / "moved"
    shutil.copytree(index, moved)
    file = videos / "day1" / "v1.mp4"
    for name, vectors in embed_file(index, file).items():
        assert torch.equal(vectors, embed_file(moved, file)[name])
    assert source_folder(moved) is None and source_folder(index) is not None


@pytest.mark.slow
def test_a_part_of_a_file_gives_windows_inside_of_it(index: Path, videos: Path) -> None:
    embedder, file = FileEmbedder(index), videos / "day0" / "v2.mp4"
    part = embedder.embed(file, start=0.8, end=1.2)
    for name in ("rgb", "flow"):
        starts = part.starts[name].tolist()
        assert min(starts) >= 20 and max(starts) + part.spans[name] <= 30
    whole = embedder.embed(file)
    assert whole.num_frames == NUM_FRAMES and whole.fps == 25 and min(whole.starts["rgb"].tolist()) == 0
    short = embedder.embed(file, start=1.0, end=1.02, modality="rgb")  # one frame: widened to a window around it
    assert list(short.vectors) == ["rgb"] and 19 <= int(short.starts["rgb"][0]) <= 25
    assert torch.equal(embed_file(index, file, start=0, end=9)["rgb"], whole.vectors["rgb"])
    with pytest.raises(ValueError, match="has 1.60 seconds; no frames from 5 to 6"):
        embedder.embed(file, start=5, end=6)


@pytest.mark.slow
def test_adding_videos_gives_the_index_of_all_at_once(
    index: Path, videos: Path, weights: list[Path], tmp_path: Path
) -> None:
    first = tmp_path / "videos"
    shutil.copytree(videos / "day1", first / "day1")
    encoders = [quick_encoder(path) for path in weights]
    index_videos(first, encoders, tmp_path / "index")
    shutil.copytree(videos / "day0", first / "day0")
    (first / "broken.mp4").write_bytes(b"no video")
    added, skipped = add_to_index(tmp_path / "index", first)
    assert added == 3 and [entry[0] for entry in skipped] == ["broken"]
    grown, whole = load_index(tmp_path / "index"), load_index(index)
    assert grown.videos == whole.videos
    for name, windows in whole.windows.items():
        assert torch.equal(grown.windows[name].videos, windows.videos)
        assert torch.equal(grown.windows[name].starts, windows.starts)
        torch.testing.assert_close(grown.windows[name].vectors, windows.vectors, atol=2e-4, rtol=0)
    assert add_to_index(tmp_path / "index", first)[0] == 0
    assert not list((tmp_path / "index").glob(".*"))


def test_features_that_were_centered_are_recovered() -> None:
    features = windowed_features()
    windows = build_index({"rgb": features}).windows["rgb"]
    unit = torch.nn.functional.normalize(features.windows, dim=1)
    order = torch.argsort(features.window_videos * 100 + features.window_starts)
    torch.testing.assert_close(windows.features(), unit[order], atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["rgb.encoder.safetensors", "flow.encoder.safetensors"])
def test_a_changed_encoder_is_refused(index: Path, tmp_path: Path, name: str) -> None:
    shutil.copytree(index, tmp_path / "index")
    shutil.copy(index / ("rgb.safetensors"), tmp_path / "index" / name)
    assert len(load_index(tmp_path / "index").videos) == 5
    with pytest.raises(ValueError, match=f"{name} is missing or was changed"):
        load_encoders(tmp_path / "index")


def test_an_index_of_format_1_is_read_but_takes_no_files(index: Path, videos: Path, tmp_path: Path) -> None:
    shutil.copytree(index, tmp_path / "index")
    content = json.loads((index / "index.json").read_text())
    for entry in content["modalities"].values():
        del entry["encoder"]
    old = {"format": 1, "videos_sha256": content["videos_sha256"], "modalities": content["modalities"]}
    (tmp_path / "index" / "index.json").write_text(json.dumps(old))
    assert load_index(tmp_path / "index").videos == load_index(index).videos
    with pytest.raises(ValueError, match="has no encoder for flow, rgb, so only its own videos can be queries"):
        embed_file(tmp_path / "index", videos / "day1" / "v1.mp4")
    with pytest.raises(ValueError, match="no encoder for flow, rgb; build it again"):
        add_to_index(tmp_path / "index", videos)


def test_weights_of_the_modalities_are_kept_and_used(tmp_path: Path) -> None:
    features = {"rgb": windowed_features(), "flow": windowed_features(7, num_values=5, seed=1)}
    save_index(tmp_path, build_index(features, weights={"rgb": 3.0, "flow": 1.0}))
    opened = load_index(tmp_path)
    queries = {name: windows.vectors[:1] for name, windows in opened.windows.items()}
    for match in search(opened, queries):
        expected = 0.75 * match.by_modality["rgb"] + 0.25 * match.by_modality["flow"]
        assert match.score == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="a weight for 'image'; this index has flow, rgb"):
        build_index(features, weights={"image": 1.0})
    with pytest.raises(ValueError, match="0 or more"):
        build_index(features, weights={"rgb": 0.0})


def test_a_project_stands_for_its_index_and_clips(index: Path, tmp_path: Path) -> None:
    (tmp_path / "project.json").write_text("{}")
    with pytest.raises(FileNotFoundError, match="has no index yet"):
        index_folder(tmp_path)
    shutil.copytree(index, tmp_path / "index")
    assert index_folder(tmp_path) == index_folder(tmp_path / "index") == tmp_path / "index"
    assert clips_folder(tmp_path) is None
    (tmp_path / "clips").mkdir()
    (tmp_path / "clips" / "store.json").write_text("{}")
    assert clips_folder(tmp_path) == clips_folder(tmp_path / "index") == tmp_path / "clips"
    assert len(load_index(tmp_path).videos) == 5
    with pytest.raises(FileNotFoundError, match="is no search index"):
        index_folder(tmp_path / "clips")


def test_weights_that_computed_no_features_file_are_refused(weights: list[Path], tmp_path: Path) -> None:
    from covid_cmsf.evaluation.features.file import save_features

    save_features(tmp_path / "x", windowed_features())
    with pytest.raises(ValueError, match="no features file was computed with the weights of rgb.safetensors"):
        index_features([tmp_path / "x"], encoders=[open_encoder(str(weights[0]))])
