"""Nearest neighbors during training: they change nothing, and work without labels."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covid_cmsf.clips.records import read_manifest, write_manifest
from covid_cmsf.report.curves import CHARTS
from covid_cmsf.training.data import select_held_out
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.online_knn import knn_top1, window_r1
from covid_cmsf.training.run import run_training
from tests.evaluation.factories import SyntheticClips
from tests.training.factories import differing, finish, make_config, stop_at

KNN = {"knn_every_epochs": 2, "knn_videos": 9}
NAMES = ("knn_top1", "window_r1")


def knn_lines(folder: Path) -> list[tuple[int, float, float]]:
    lines = [line for line in read_metrics(folder / "metrics.jsonl") if any(name in line for name in NAMES)]
    return [(line["epoch"], line.get("knn_top1", -1.0), line.get("window_r1", -1.0)) for line in lines]


def test_the_functions_equal_loops_over_pairs() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(12, 2, 5, generator=generator)
    labels, sources = torch.tensor([0, 1, 2, -1] * 3), torch.arange(12) // 2
    videos = features.mean(1)
    known = [i for i in range(12) if labels[i] >= 0]
    unit = videos - videos[known].mean(0)
    hits = []
    for i in known:
        others = [j for j in known if sources[j] != sources[i]]
        best = max(others, key=lambda j: float(torch.cosine_similarity(unit[i], unit[j], dim=0)))
        hits.append(bool(labels[best] == labels[i]))
    assert knn_top1(videos, labels, sources) == pytest.approx(100 * sum(hits) / len(hits))
    moved = features - features[:, 1].mean(0)
    found = []
    for video in range(12):
        alike = [float(torch.cosine_similarity(moved[video, 0], moved[other, 1], dim=0)) for other in range(12)]
        found.append(alike.index(max(alike)))
    assert window_r1(features) == pytest.approx(100 * sum(i == j for i, j in enumerate(found)) / 12)


def test_what_cannot_be_asked_is_left_out() -> None:
    features = torch.randn(4, 3)
    assert knn_top1(features, torch.tensor([-1, -1, -1, 0]), torch.arange(4)) is None
    assert knn_top1(features, torch.tensor([0, 1, 0, 1]), torch.zeros(4)) is None
    assert window_r1(torch.randn(1, 2, 3)) is None


@pytest.mark.slow
def test_they_are_logged_and_change_nothing_also_in_a_run_that_is_stopped(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    epochs = {"epochs": 3}
    run_training(make_config(clips, schedule=epochs), tmp_path / "without")
    run_training(make_config(clips, schedule=epochs, runtime=KNN), tmp_path / "with")
    lines = knn_lines(tmp_path / "with")
    assert [epoch for epoch, *_ in lines] == [1, 2]
    assert all(0 <= value <= 100 for _, *values in lines for value in values)
    stop_at(monkeypatch, 3, 10, 12)  # within an epoch, and at the end of the second
    assert finish(make_config(clips, schedule=epochs, runtime=KNN), tmp_path / "stopped") == 3
    assert differing(tmp_path / "stopped", tmp_path / "with") == []
    changed = differing(tmp_path / "without", tmp_path / "with")
    assert changed and all(place.split(".")[-2] in NAMES for place in changed)


@pytest.mark.slow
def test_without_labels_a_video_is_recognized_by_its_other_window(clips: Path, tmp_path: Path) -> None:
    shutil.copytree(clips, tmp_path / "clips")
    manifest = tmp_path / "clips" / "manifest.csv"
    unlabeled = [replace(one, class_name="", label=-1) for one in read_manifest(manifest)]
    write_manifest(manifest, unlabeled)
    run_training(make_config(tmp_path / "clips", schedule={"epochs": 1}, runtime=KNN), tmp_path / "run")
    ((_, top1, window),) = knn_lines(tmp_path / "run")
    assert top1 == -1 and window >= 0


def test_a_missing_subset_is_refused_before_training(clips: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no video in subset 'val'"):
        run_training(make_config(clips, runtime={**KNN, "knn_subset": "val"}), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_videos_for_validation_are_preferred_to_those_of_the_test() -> None:
    clips, config = SyntheticClips(), make_config(Path("none"), split="1")
    test = {record.video_id for record in select_held_out(clips, config)}
    assert test == {name for name, subset in clips.splits["1"].items() if subset == "test"}
    kept = sorted(set(clips.splits["1"]) - test)[:3]
    clips.splits = {"1": {**clips.splits["1"], **dict.fromkeys(kept, "val")}}
    assert [record.video_id for record in select_held_out(clips, config)] == kept
    named = config.model_copy(update={"runtime": config.runtime.model_copy(update={"knn_subset": "test"})})
    assert {record.video_id for record in select_held_out(clips, named)} == test


def test_the_report_draws_them() -> None:
    assert [key for chart in CHARTS if chart.name == "knn" for key, _ in chart.keys] == [*NAMES]
