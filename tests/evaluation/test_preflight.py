"""What can be known before features are extracted is said before, and nothing is written."""

from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.clips import open_clips
from covid_cmsf.evaluation.features.extract import extract_features
from covid_cmsf.evaluation.features.model import create_random_model
from covid_cmsf.evaluation.preflight import check_extraction, check_measurements, is_labeled, split_table
from covid_cmsf.preflight import PreflightError
from covid_cmsf.views.modalities import get_modality
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
