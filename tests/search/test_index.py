"""The search index on disk."""

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.search.index import SearchIndex, build_index, load_index, save_index
from tests.search.factories import windowed_features


def two_modalities() -> SearchIndex:
    return build_index({"rgb": windowed_features(), "flow": windowed_features(6, num_values=5, seed=1)})


def test_windows_are_sorted_by_video_and_start_and_keep_their_vectors() -> None:
    features = windowed_features()
    windows = build_index({"rgb": features}).windows["rgb"]
    keys = list(zip(windows.videos.tolist(), windows.starts.tolist(), strict=True))
    assert keys == sorted(keys) and len(keys) == len(features.windows)
    unit = F.normalize(features.windows.double(), dim=1)
    mean = unit.mean(0)
    for video, start, vector in zip(features.window_videos, features.window_starts, unit, strict=True):
        row = keys.index((int(video), int(start)))
        torch.testing.assert_close(windows.vectors[row].double(), F.normalize(vector - mean, dim=0), atol=1e-6, rtol=0)


def test_centering_a_feature_gives_the_vector_of_the_index() -> None:
    features = windowed_features()
    windows = build_index({"rgb": features}).windows["rgb"]
    centered = windows.center(features.windows[3:4])
    assert float((windows.vectors @ centered.T).max()) == pytest.approx(1, abs=1e-6)


def test_an_index_is_read_as_it_was_written(tmp_path: Path) -> None:
    index = two_modalities()
    save_index(tmp_path / "index", index)
    read = load_index(tmp_path / "index")
    assert read.videos == index.videos and list(read.windows) == ["flow", "rgb"]
    for name, windows in index.windows.items():
        assert read.windows[name].span == windows.span == 8
        for key in ("vectors", "mean", "videos", "starts"):
            assert torch.equal(getattr(read.windows[name], key), getattr(windows, key))


@pytest.mark.parametrize("name", ["rgb.safetensors", "videos.csv"])
def test_one_changed_byte_is_an_error_that_names_the_file(tmp_path: Path, name: str) -> None:
    save_index(tmp_path, two_modalities())
    content = bytearray((tmp_path / name).read_bytes())
    content[-5] ^= 1
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_index(tmp_path)


def test_every_changed_value_of_the_description_is_an_error_that_names_it(tmp_path: Path) -> None:
    save_index(tmp_path, two_modalities())
    whole = (tmp_path / "index.json").read_text()
    places = [place for place, sign in enumerate(whole) if sign.isdigit()]
    assert len(places) > 100
    for place in places[::7]:
        (tmp_path / "index.json").write_text(whole[:place] + str((int(whole[place]) + 1) % 10) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"index\.json"):
            load_index(tmp_path)
    (tmp_path / "index.json").write_text(whole)
    assert load_index(tmp_path).videos


def test_a_file_of_another_index_is_refused(tmp_path: Path) -> None:
    save_index(tmp_path / "a", two_modalities())
    save_index(tmp_path / "b", build_index({"rgb": windowed_features(seed=5)}))
    (tmp_path / "a" / "rgb.safetensors").write_bytes((tmp_path / "b" / "rgb.safetensors").read_bytes())
    with pytest.raises(ValueError, match="belongs to another index"):
        load_index(tmp_path / "a")


def test_an_interrupted_index_is_not_taken_for_complete(tmp_path: Path) -> None:
    save_index(tmp_path, two_modalities())
    (tmp_path / "index.json").unlink()
    with pytest.raises(FileNotFoundError, match="no search index"):
        load_index(tmp_path)


def test_a_video_is_found_by_its_id_or_a_unique_part_of_it() -> None:
    index = build_index({"rgb": windowed_features(12)})
    assert index.videos[index.find("v1")].video_id == "v1"  # exact, although v10 and v11 contain it
    assert index.videos[index.find("11")].video_id == "v11"
    with pytest.raises(ValueError, match="12 videos have 'v'"):
        index.find("v")
    with pytest.raises(ValueError, match="no video 'x'"):
        index.find("x")


def test_an_index_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one modality"):
        build_index({})
