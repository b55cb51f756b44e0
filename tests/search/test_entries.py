"""Entries `image`, `motion` and `color`: indexed from files, kept in the index, used for queries from files."""

import shutil
from pathlib import Path

import pytest
import torch

from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.model import create_histogram_model, load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.search.build import index_features, index_videos
from covid_cmsf.search.encoders import open_encoder
from covid_cmsf.search.files import FileEmbedder
from covid_cmsf.search.index import load_index
from covid_cmsf.search.query import search
from tests.evaluation.factories import SyntheticClips
from tests.factories import moving_square, write_video
from tests.models.test_image_networks import TINY, tiny_weights
from tests.search.factories import quick_encoder

timm = pytest.importorskip("timm", reason="the extra timm is not installed")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("weights") / "tiny.safetensors"
    tiny_weights(path)
    return f"timm:{TINY}?weights={path}"


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("videos")
    for number in range(3):
        write_video(folder / f"v{number}.mp4", moving_square(20, seed=number))
    return folder


@pytest.mark.slow
def test_an_index_of_files_has_all_kinds_of_entries_and_finds_files_with_them(
    image: str, videos: Path, tmp_path: Path
) -> None:
    encoders = [quick_encoder(name, num_windows=2) for name in (image, "histogram:flow", "histogram:color")]
    index_videos(videos, encoders, tmp_path / "index", weights={"image": 1.0, "motion": 0.5, "color": 0.0})
    shutil.move(tmp_path / "index", tmp_path / "moved")
    index = load_index(tmp_path / "moved")
    assert {name: len(one.videos) for name, one in index.windows.items()} == {"color": 6, "image": 6, "motion": 6}
    assert {one.span for one in index.windows.values()} == {8}  # the same windows
    embedder = FileEmbedder(tmp_path / "moved", index)
    for name in ("image", "motion", "color", "fused"):
        best = search(index, embedder.embed(videos / "v1.mp4").vectors, top=1, modality=name)[0]
        assert index.videos[best.video].video_id == "v1" and best.score == pytest.approx(1, abs=1e-4)


def test_entries_of_features_files_have_the_names_of_their_kind(image: str, tmp_path: Path) -> None:
    clips = SyntheticClips()
    models = {"a": load_eval_model(image), "b": create_histogram_model("flow")}
    for name, model in models.items():
        protocol = build_eval_protocol(model.metadata, length=4, num_windows=2)
        extract_features(model, clips, tmp_path / name, eval_protocol=protocol)
    index, encoders = index_features([tmp_path / name for name in models])
    assert set(index.windows) == set(encoders) == {"image", "motion"}
    assert torch.equal(index.windows["image"].videos, index.windows["motion"].videos)
    Path(image.partition("weights=")[2]).rename(tmp_path / "gone")
    index, encoders = index_features([tmp_path / name for name in models])
    (tmp_path / "gone").rename(image.partition("weights=")[2])
    assert set(encoders) == {"motion"}


def test_unknown_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="unknown histogram 'sound'; choose from color, flow"):
        open_encoder("histogram:sound")
    with pytest.raises(ValueError, match="timm has no network"):
        open_encoder("timm:no_such_network")
