"""Correlation of label-free numbers with R@1: R@1 against a loop, stages found in a plan's folder."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from covid_cmsf.evaluation.features.file import save_features
from tests.evaluation.factories import synthetic_features
from tests.test_compare_search import ucf_features
from tools.label_free_correlation import Point, correlations, leave_source_out_r1, plan_points


@pytest.mark.parametrize("labeled", [True, False])
def test_r1_is_that_of_a_loop_over_videos_of_other_sources(labeled: bool) -> None:
    features = synthetic_features() if labeled else ucf_features()
    videos, count = features.videos, len(features.videos)
    if labeled:
        labels, sources = videos.labels.tolist(), list(videos.sources)
    else:
        labels, sources = [one[0] for one in videos.ids], [one[:-4] for one in videos.ids]
    unit = torch.nn.functional.normalize(features.features - features.features.mean(0), dim=1)
    hits = 0
    for query in range(count):
        others = [i for i in range(count) if sources[i] != sources[query]]
        hits += labels[max(others, key=lambda i: float(unit[query] @ unit[i]))] == labels[query]
    assert leave_source_out_r1(features) == pytest.approx(100 * hits / count)


def test_stages_of_both_modalities_are_found_and_the_last_round_is_taken(tmp_path: Path) -> None:
    for seed in (0, 1):
        for number, name in enumerate(
            ("random-rgb", "random-flow", "cmsf-rgb-1", "cmsf-flow-1", "cmsf-flow-2", "msf-rgb")
        ):
            folder = tmp_path / f"seed-{seed}" / name
            folder.mkdir(parents=True)
            save_features(folder / "features.safetensors", ucf_features(10 * number + seed))
    points = plan_points(tmp_path, ("random", "cmsf", "msf"))
    assert [(one.seed, one.stage, one.modality) for one in points] == [
        (seed, stage, modality) for seed in (0, 1) for stage in ("random", "cmsf") for modality in ("rgb", "flow")
    ]
    assert points[3].r1 == leave_source_out_r1(ucf_features(40))


def test_correlations_are_over_the_points_of_each_group() -> None:
    base = Point(0, "msf", "rgb", 50.0, 10.0, 5.0, 3.0)
    points = [
        replace(base, seed=i, r1=50.0 + i, window_r1=10.0 + i**3, agreement=5.0 - i, effective_rank=float(i))
        for i in range(5)
    ]
    points.append(replace(base, stage="random", r1=10.0, window_r1=2000.0, effective_rank=4.0))
    found = correlations(points)
    assert found["rgb, trained"]["window_r1"]["spearman"] == 1.0
    assert found["rgb, trained"]["agreement"] == {"spearman": -1.0, "pearson": -1.0, "n": 5}
    assert found["rgb"]["window_r1"]["spearman"] < 1 and "flow" not in found
