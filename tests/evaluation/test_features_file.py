"""The features file: every way in which it can be wrong has its own message."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from covid_cmsf.evaluation.features.file import FEATURES_HEADER, load_features, save_features
from covid_cmsf.evaluation.features.subsets import VideoTable
from tests.evaluation.factories import synthetic_features


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_features(tmp_path / "f", synthetic_features())
    return tmp_path / "f"


def rewritten(path: Path, change: object) -> Path:
    """The file with its header changed by a function."""
    with safe_open(path, framework="pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        header = json.loads(file.metadata()[FEATURES_HEADER])
    change(header, tensors)  # type: ignore[operator]
    save_file(tensors, path, metadata={FEATURES_HEADER: json.dumps(header)})
    return path


def test_a_wrong_path_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="covid-cmsf extract"):
        load_features(tmp_path / "no")
    with pytest.raises(IsADirectoryError, match="is a directory"):
        load_features(tmp_path)


def test_a_truncated_file_is_said_at_any_length(path: Path) -> None:
    whole = path.read_bytes()
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match="truncated"):
            load_features(path)


def test_another_kind_of_file_is_said(tmp_path: Path) -> None:
    save_file({"encoder.weight": torch.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="not a features file"):
        load_features(tmp_path / "weights.safetensors")
    (tmp_path / "page").write_text("<html>not found</html>")
    with pytest.raises(ValueError, match="is not a features file"):
        load_features(tmp_path / "page")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, _: header["provenance"].update(format=3), "has format 3; this version reads format 2"),
        (lambda header, _: header.pop("provenance"), "no `provenance`"),
        (lambda header, _: header["provenance"].pop("encoder"), "'encoder' is missing"),
        (lambda header, _: header["videos"].pop("labels"), "video table is damaged"),
        (lambda header, _: header["videos"]["ids"].pop(), "differ in length"),
        (lambda header, _: header["videos"]["ids"].__setitem__(0, header["videos"]["ids"][1]), "is listed twice"),
        (lambda header, _: header["videos"]["labels"].__setitem__(0, 77), "labels must be -1 to 3"),
        (lambda _, tensors: tensors.pop("windows"), "missing tensors windows"),
        (lambda _, tensors: tensors.update(features=tensors["features"][:3]), "3 features for 48 videos"),
        (lambda _, tensors: tensors.update(windows=tensors["windows"][:, :3].clone()), "do not fit"),
        (lambda _, tensors: tensors["features"][5].fill_(float("nan")), "of 1 videos are not finite:"),
        (lambda _, tensors: tensors["features"][5, 0].fill_(float("inf")), "not finite"),
    ],
)
def test_what_does_not_hold_together_is_said(path: Path, change: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_features(rewritten(path, change))


def test_strange_names_survive(tmp_path: Path) -> None:
    features = synthetic_features(1, 3)
    names = ('a"b,c', "line\nbreak", "bytes\udcff", "päth", "e", "f")
    videos = VideoTable(names, names, features.videos.labels, features.videos.subsets, ("c\udcfe",))
    save_features(tmp_path / "f", replace(features, videos=videos, skipped=(("x\udcff", "train", "no"),)))
    again = load_features(tmp_path / "f")
    assert again.videos.ids == names and again.skipped[0][0] == "x\udcff"


def test_saving_replaces_only_when_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = path.read_bytes()
    monkeypatch.setattr("covid_cmsf.evaluation.features.file.save", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        save_features(path, synthetic_features(seed=1))
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["f"]
