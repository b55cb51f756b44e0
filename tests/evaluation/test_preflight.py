"""What can be known before features are extracted is said before, and nothing is written."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from covid_cmsf import preflight as preflight_module
from covid_cmsf.cli.app import app
from covid_cmsf.clips import open_clips
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.file import save_features
from covid_cmsf.evaluation.features.model import create_random_model
from covid_cmsf.evaluation.preflight import check_extraction, check_measurements, is_labeled, split_table
from covid_cmsf.preflight import PreflightError
from covid_cmsf.views.modalities import get_modality
from tests.evaluation.factories import small_checkpoint, synthetic_features
from tests.factories import make_table_store


def problems(clips: Path, **changes: Any) -> list[tuple[str, str]]:
    options = {"length": 8, "stride": 1, "num_windows": 4, "num_features": 64, "split": "1", "out": None, **changes}
    modality = get_modality(options.pop("modality", "rgb"))
    found = check_extraction(open_clips(clips), address=str(clips), modality=modality, **options)
    return [(one.severity, one.message) for one in found]


def test_clips_that_fit_have_no_problem(tmp_path: Path) -> None:
    assert not problems(make_table_store(tmp_path / "clips"), out=tmp_path / "rgb.features")


@pytest.mark.parametrize(
    ("changes", "severity", "message"),
    [
        ({"modality": "flow"}, "error", "has no flow, which modality flow needs (it has rgb)"),
        ({"split": "2"}, "error", "'2'"),
        (
            {"length": 64},
            "warning",
            "a clip spans 64 frames (length 64, stride 1), and the longest of 27 videos has 20",
        ),
        ({"num_features": 10**18}, "error", "the features of 27 videos need about"),
    ],
)
def test_what_does_not_fit_is_one_line(tmp_path: Path, changes: dict[str, Any], severity: str, message: str) -> None:
    ((found, line),) = problems(make_table_store(tmp_path / "clips", modalities=("rgb",)), **changes)
    assert found == severity and message in line and "\n" not in line


def test_features_need_disk_space(tmp_path: Path) -> None:
    lines = problems(make_table_store(tmp_path / "clips"), num_features=10**18, out=tmp_path / "rgb.features")
    assert [f"the features of {tmp_path / 'clips'} need about" in line for _, line in lines] == [False, True]


def test_an_extraction_that_cannot_work_writes_nothing(tmp_path: Path) -> None:
    clips = open_clips(make_table_store(tmp_path / "clips", modalities=("rgb",)))
    with pytest.raises(PreflightError, match="has no flow"):
        extract_features(create_random_model("s3d_tiny", modality="flow"), clips, tmp_path / "flow.features")
    assert [path.name for path in tmp_path.iterdir()] == ["clips"]


def test_measurements_need_labels_subsets_and_two_sources_per_class(tmp_path: Path) -> None:
    labeled = split_table(open_clips(make_table_store(tmp_path / "labeled")), "1")
    options: dict[str, Any] = {"gallery": "train", "query": "test", "allow_shared_sources": False, "linear": True}
    assert is_labeled(labeled) and not check_measurements(labeled, **options)
    assert "subset 'test' is empty" in check_measurements(labeled.take(torch.arange(7)), **options)[0].message
    single = split_table(open_clips(make_table_store(tmp_path / "single", train=1)), "1")
    (problem,) = check_measurements(single, **options)
    assert "every class has a single source" in problem.message
    unlabeled = split_table(open_clips(make_table_store(tmp_path / "unlabeled", labeled=False)), "1")
    assert not is_labeled(unlabeled)


# `evaluate` on features files


def evaluate(command: str, *args: object) -> Result:
    return CliRunner().invoke(app, ["evaluate", command, *map(str, args)])


@pytest.fixture
def features(tmp_path: Path) -> Path:
    """Four classes, 32 training and 16 test videos."""
    save_features(tmp_path / "rgb.features", synthetic_features())
    return tmp_path / "rgb.features"


@pytest.mark.parametrize("command", ["retrieval", "linear", "knn", "fusion", "neighbors", "unlabeled"])
def test_a_result_that_cannot_be_written_is_said_before_anything_is_measured(features: Path, command: str) -> None:
    files = [features, features] if command == "fusion" else [features]
    for out, message in ((features.parent / "no" / "r.json", "no folder"), (features.parent, "is a folder")):
        result = evaluate(command, *files, "--out", out)
        assert isinstance(result.exception, PreflightError) and message in str(result.exception)
    assert [path.name for path in features.parent.iterdir()] == ["rgb.features"]


def test_all_problems_of_an_evaluation_are_told_at_once(features: Path) -> None:
    result = evaluate("knn", features, "--gallery", "val", "--query", "tests", "--k", 99, "--out", "/no/r.json")
    first, *lines = str(result.exception).splitlines()
    assert first == "2 problems, nothing was started:"
    assert "no folder /no" in lines[0] and "unknown subset 'tests'" in lines[1]
    result = evaluate("knn", features, "--k", 33, "--gallery", "test", "--query", "test")
    lines = str(result.exception).splitlines()
    assert len(lines) == 3 and "in common" in lines[1] and "k = 33" in lines[2]
    assert evaluate("knn", features, "--k", 32).exit_code == 0


def test_two_files_are_both_looked_at(features: Path) -> None:
    (features.parent / "no.features").write_bytes(b"nothing")
    result = evaluate("fusion", features.parent / "no.features", features.parent / "absent.features")
    assert isinstance(result.exception, ValueError | FileNotFoundError)
    result = evaluate("unlabeled", features.parent / "no.features", features.parent / "absent.features")
    lines = str(result.exception).splitlines()
    assert len(lines) == 3 and "no.features" in lines[1] and "absent.features" in lines[2]


def test_a_probe_needs_two_classes_and_two_sources(features: Path) -> None:
    loaded = synthetic_features()
    one = replace(loaded, videos=replace(loaded.videos, labels=torch.zeros_like(loaded.videos.labels)))
    features.unlink()
    save_features(features, one)
    assert "a classifier needs at least two classes" in str(evaluate("linear", features).exception)
    single = synthetic_features(num_sources=3)  # two of training per class
    videos = replace(single.videos, sources=tuple(f"s{label}" for label in single.videos.labels.tolist()))
    features.unlink()
    save_features(features, replace(single, videos=videos))
    result = evaluate("linear", features, "--allow-shared-sources")
    assert isinstance(result.exception, PreflightError) and "every class has a single source" in str(result.exception)
    assert evaluate("linear", features, "--allow-shared-sources", "--probe", "compress").exit_code == 0


def test_classes_without_a_gallery_video_are_a_warning(features: Path, caplog: pytest.LogCaptureFixture) -> None:
    loaded = synthetic_features()
    labels = loaded.videos.labels.clone()
    labels[[i for i, subset in enumerate(loaded.videos.subsets) if subset == "train"]] %= 3
    features.unlink()
    save_features(features, replace(loaded, videos=replace(loaded.videos, labels=labels)))
    with caplog.at_level(logging.WARNING):
        assert evaluate("retrieval", features).exit_code == 0
    assert "1 of the 4 classes of 'test' have no video in 'train', for example 'c3'" in caplog.text


def test_features_that_do_not_fit_into_memory_are_not_read(features: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight_module, "available_memory", lambda: 1000.0)
    assert "of memory, and 1 kB are available" in str(evaluate("retrieval", features).exception)


# `evaluate` on clips and images


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three classes; 6 training videos and 3 test videos of each."""
    return make_table_store(tmp_path / "clips", train=6, test=3)


def problem_lines(result: Result) -> list[str]:
    assert isinstance(result.exception, PreflightError)
    return str(result.exception).splitlines()


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_checkpoint(tmp_path_factory.mktemp("weights") / "w.safetensors")


def test_all_problems_of_baselines_are_told_at_once(store: Path) -> None:
    before = sorted(store.parent.rglob("*"))
    out, kept = store.parent / "no" / "r.json", store / "store.json" / "kept"
    options = ["--out", out, "--features", kept, "--query", "tests", "--random", "resnet", "--device", "tpu"]
    first, *lines = problem_lines(evaluate("baselines", store, *options))
    assert first == "5 problems, nothing was started:"
    for line, part in zip(
        lines, ["no folder", "is a file", "unknown device 'tpu'", "resnet", "unknown subset 'tests'"], strict=True
    ):
        assert part in line
    (line,) = problem_lines(evaluate("baselines", store, "--split", "7", "--out", store.parent / "r.json"))
    assert "no split '7'" in line
    _, *lines = problem_lines(evaluate("baselines", store.parent / "absent", "--out", out))
    assert "no folder" in lines[0] and "absent" in lines[1]
    assert sorted(store.parent.rglob("*")) == before


def test_all_problems_of_a_training_on_clips_are_told_at_once(store: Path, weights: Path) -> None:
    before = sorted(store.parent.rglob("*"))
    options = ["--crops", 3, "--device", "tpu", "--split", "7", "--out", store / "store.json"]
    first, *lines = problem_lines(evaluate("finetune", store.parent / "absent.pt", store, *options))
    assert first == "5 problems, nothing was started:"
    parts = ["num_crops = 3", "unknown device 'tpu'", "absent.pt", "is a file", "no split '7'"]
    for line, part in zip(lines, parts, strict=True):
        assert part in line
    _, *lines = problem_lines(evaluate("linear", weights, store.parent / "absent", "--protocol", "own"))
    assert ["--out" in lines[0], "absent" in lines[1], "own" in lines[2]] == [True, True, True]
    out = store.parent / "tuned"
    (line,) = problem_lines(evaluate("finetune", weights, store, "--out", out))
    assert "do not fill one batch of 32: --batch-size" in line
    _, *lines = problem_lines(evaluate("finetune", weights, store, "--out", out, "--query", "train"))
    assert "in common" in lines[0] and "batch of 32" in lines[1]
    assert sorted(store.parent.rglob("*")) == before


def test_a_training_on_clips_needs_labels_classes_and_disk_space(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clips = make_table_store(tmp_path / "unlabeled", labeled=False)
    (line,) = problem_lines(evaluate("finetune", weights, clips, "--out", tmp_path / "tuned"))
    assert "has a label" in line
    clips = make_table_store(tmp_path / "clips", train=6, test=3)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    (line,) = problem_lines(evaluate("finetune", weights, clips, "--out", tmp_path / "tuned", "--batch-size", 2))
    assert "the checkpoints need about" in line and not (tmp_path / "tuned").exists()


def test_all_problems_of_a_transfer_are_told_at_once(tmp_path: Path, weights: Path) -> None:
    options = ["--datasets", f"{tmp_path}/own,dtd,{tmp_path}/other,nothing", "--normalize", "max", "--executor", "x"]
    (tmp_path / "file").touch()
    first, *lines = problem_lines(
        evaluate("transfer", tmp_path / "absent.pt", *options, "--root", tmp_path, "--out", tmp_path / "file")
    )
    assert first == "8 problems, nothing was started:"
    parts = ["normalization 'max'", "executor 'x'", "absent.pt", "own/train", "dtd", "other/train", "'nothing'", "file"]
    for line, part in zip(lines, parts, strict=True):
        assert part in line
    out = tmp_path / "out"
    _, *lines = problem_lines(evaluate("transfer", weights, "--datasets", f"dtd,{tmp_path}/own", "--out", out))
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert any("--root is needed" in line for line in lines) and any("own/train" in line for line in lines)
    downloading = evaluate("transfer", tmp_path / "absent.pt", "--root", tmp_path, "--out", out, "--download")
    (line,) = problem_lines(downloading)
    assert "absent.pt" in line and [path.name for path in tmp_path.iterdir()] == ["file"]
