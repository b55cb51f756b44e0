"""The features file: every way in which it can be wrong has its own message."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from covid_cmsf.evaluation.features.columns import decode_texts, encode_texts
from covid_cmsf.evaluation.features.file import FEATURES_HEADER, FEATURES_TENSORS, load_features, save_features
from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from covid_cmsf.verified_files import read_metadata, read_tensors, write_tensors
from tests.evaluation.factories import synthetic_features


@pytest.fixture
def path(tmp_path: Path) -> Path:
    save_features(tmp_path / "f", synthetic_features())
    return tmp_path / "f"


def rewritten(path: Path, change: Callable[[dict[str, Any], dict[str, Tensor]], object]) -> Path:
    """The file with its header or tensors changed by a function, and a hash that fits."""
    tensors, metadata = read_tensors(path)
    header = json.loads(metadata[FEATURES_HEADER])
    change(header, tensors)
    write_tensors(path, tensors, metadata={FEATURES_HEADER: json.dumps(header)})
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
        with pytest.raises(ValueError, match="damaged.*`covid-cmsf extract` writes a features file again"):
            load_features(path)


def test_a_flipped_bit_anywhere_is_found(path: Path) -> None:
    whole = path.read_bytes()
    for position in (whole.index(b"provenance"), len(whole) // 2, len(whole) - 1):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="damaged safetensors file .*SHA-256"):
            load_features(path)


def test_another_kind_of_file_is_said(tmp_path: Path) -> None:
    save_file({"encoder.weight": torch.zeros(3)}, tmp_path / "weights.safetensors")
    with pytest.raises(ValueError, match="not a features file"):
        load_features(tmp_path / "weights.safetensors")
    (tmp_path / "page").write_text("<html>not found</html>")
    with pytest.raises(ValueError, match="page is a truncated or damaged safetensors file"):
        load_features(tmp_path / "page")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda header, _: header["provenance"].update(format=4), "has format 4; this version reads formats 1 to 3"),
        (lambda header, _: header.pop("provenance"), "no `provenance`"),
        (lambda header, _: header["provenance"].pop("encoder"), "'encoder' is missing"),
        (lambda _, tensors: tensors.pop("videos.labels"), "missing tensor 'videos.labels'"),
        (lambda _, tensors: tensors.pop("videos.ids.ends"), "missing tensor 'videos.ids.ends'"),
        (lambda _, tensors: tensors["videos.sources.codes"].fill_(99), "the column videos.sources is damaged"),
        (lambda _, tensors: tensors["videos.ids.ends"][3].fill_(0), "the column videos.ids is damaged"),
        (lambda _, tensors: tensors.update({"videos.labels": tensors["videos.labels"][1:]}), "differ in length"),
        (lambda _, tensors: tensors["videos.ids.codes"][0].fill_(1), "is listed twice"),
        (lambda _, tensors: tensors["videos.labels"][0].fill_(77), "labels must be -1 to 3"),
        (lambda _, tensors: tensors.update({"skipped.ids.codes": torch.zeros(1)}), "skipped.ids is damaged"),
        (lambda _, tensors: tensors.pop("windows"), "missing tensors windows"),
        (lambda _, tensors: tensors.update(features=tensors["features"][:3]), "3 features for 48 videos"),
        (lambda _, tensors: tensors.update(windows=tensors["windows"][:, :3].clone()), "do not fit"),
        (lambda _, tensors: tensors["features"][5].fill_(float("nan")), "of 1 videos are not finite:"),
        (lambda _, tensors: tensors["features"][5, 0].fill_(float("inf")), "not finite"),
    ],
)
def test_what_does_not_hold_together_is_said(path: Path, change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_features(rewritten(path, change))


def test_strange_names_survive(tmp_path: Path) -> None:
    features = synthetic_features(1, 3)
    names = ('a"b,c', "line\nbreak", "bytes\udcff", "päth", "e", "f")
    videos = VideoTable(names, names, features.videos.labels, features.videos.subsets, ("c\udcfe",))
    save_features(tmp_path / "f", replace(features, videos=videos, skipped=(("x\udcff", "train", "no"),)))
    again = load_features(tmp_path / "f")
    assert again.videos.ids == names and again.skipped[0][0] == "x\udcff"


def test_saving_replaces_only_when_whole(path: Path) -> None:
    before = path.read_bytes()
    unwritable = replace(synthetic_features(seed=1), features=torch.zeros(48, 16, dtype=torch.complex64))
    with pytest.raises(KeyError):
        save_features(path, unwritable)
    assert path.read_bytes() == before and [p.name for p in path.parent.iterdir()] == ["f"]


def test_tables_of_any_length_are_columns_not_header(tmp_path: Path) -> None:
    """The header of a safetensors file holds 100 MB: a million ids in it could not be written."""
    features = synthetic_features(4, 600)
    save_features(tmp_path / "f", replace(features, skipped=tuple((f"x{i}", "test", "lost") for i in range(5000))))
    again = load_features(tmp_path / "f")
    assert again.videos.ids == features.videos.ids and again.videos.sources == features.videos.sources
    assert again.videos.subsets == features.videos.subsets and again.videos.class_names == features.videos.class_names
    assert torch.equal(again.videos.labels, features.videos.labels) and again.videos.contents is not None
    assert len(again.skipped) == 5000 and again.skipped[4999] == ("x4999", "test", "lost")
    assert len(read_metadata(tmp_path / "f")[FEATURES_HEADER]) < 2000


@pytest.mark.parametrize("texts", [(), ("",), ("", "a", ""), ("ä", "b\udcff", "ä", "c\n")])
def test_texts_come_back(texts: tuple[str, ...]) -> None:
    assert decode_texts("t", encode_texts("t", texts), location="here") == texts


def test_a_file_of_format_2_is_read(tmp_path: Path) -> None:
    features = synthetic_features()
    videos = features.videos
    header = {
        "provenance": {**features.provenance.model_dump(mode="json"), "format": 2},
        "videos": {
            "ids": videos.ids, "sources": videos.sources, "subsets": videos.subsets,
            "class_names": videos.class_names, "labels": videos.labels.tolist(),
        },
        "skipped": [["lost", "test", "not among the clips"]],
    }  # fmt: skip
    tensors = {name: getattr(features, name) for name in FEATURES_TENSORS}
    save_file(tensors, tmp_path / "old", metadata={FEATURES_HEADER: json.dumps(header)})
    again = load_features(tmp_path / "old")
    assert again.videos.ids == videos.ids and again.skipped == (("lost", "test", "not among the clips"),)
    assert evaluate_retrieval(again) == replace(evaluate_retrieval(features), features=[again.summary()])
    header["videos"]["ids"] = videos.ids[1:]  # type: ignore[index]
    save_file(tensors, tmp_path / "old", metadata={FEATURES_HEADER: json.dumps(header)})
    with pytest.raises(ValueError, match="differ in length: 47 ids, 48 sources"):
        load_features(tmp_path / "old")
