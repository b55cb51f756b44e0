"""Chance and histograms against loops; the table of all baselines."""

from math import hypot
from pathlib import Path

import numpy as np
import pytest
import torch

from covid_cmsf.evaluation.baselines import chance, evaluate_baselines
from covid_cmsf.evaluation.features.model import (
    ColorHistogram,
    FlowHistogram,
    create_histogram_model,
    load_eval_model,
)
from covid_cmsf.evaluation.results import result_to_dict, write_result
from covid_cmsf.evaluation.retrieval import chance_recall
from tests.evaluation.factories import SyntheticClips, synthetic_features


def test_chance_is_what_blind_draws_reach() -> None:
    rng = np.random.default_rng(0)
    same, num_gallery, k = [3, 3, 8], 20, 4
    hits = [np.mean([(rng.permutation(num_gallery)[:k] < n).any() for _ in range(4000)]) for n in same]
    assert chance_recall(same, num_gallery, k) == pytest.approx(100 * np.mean(hits), abs=2)
    assert chance_recall([5], 20, 1) == pytest.approx(25)
    made = chance(synthetic_features().videos, "train", "test")
    assert made.recall[1] == pytest.approx(25) and made.linear == pytest.approx(25)


def test_colors_are_counted_as_by_a_loop() -> None:
    clip = torch.rand(2, 3, 2, 4, 5, generator=torch.Generator().manual_seed(0))
    clip[0, :, 0, 0, 0] = 1.0
    found = ColorHistogram(4)(clip)
    for row in range(2):
        counts = np.zeros(64)
        for color in clip[row].flatten(1).T.tolist():
            red, green, blue = (min(3, int(value * 4)) for value in color)
            counts[(red * 4 + green) * 4 + blue] += 1
        assert np.allclose(found[row].numpy(), np.sqrt(counts / counts.sum()), atol=1e-6)


def test_motions_are_counted_as_by_a_loop() -> None:
    clip = 2 * torch.randn(1, 2, 2, 6, 7, generator=torch.Generator().manual_seed(0))
    network = FlowHistogram(num_directions=4, grid=2, static_threshold=0.5)
    sums = np.zeros((4, 5))
    for t in range(2):
        for i in range(6):
            for j in range(7):
                x, y = clip[0, :, t, i, j].tolist()
                turn = np.degrees(np.arctan2(y, x)) % 360
                nearest = min(range(4), key=lambda d: min(abs(turn - 90 * d), 360 - abs(turn - 90 * d)))
                cell = 2 * (i * 2 // 6) + j * 2 // 7
                moving = hypot(x, y) > 0.5
                sums[cell, nearest if moving else 4] += hypot(x, y) if moving else 0.5
    assert np.allclose(network(clip)[0].numpy(), np.sqrt(sums.ravel() / sums.sum()), atol=1e-5)


@pytest.mark.slow
def test_all_baselines_stand_in_one_table(tmp_path: Path) -> None:
    clips = SyntheticClips(broken=[4])
    result = evaluate_baselines(clips, tmp_path)
    names = [row.name for row in result.baselines]
    assert names == ["chance", "color-histogram", "flow-histogram", "random-s3d_tiny-rgb", "random-s3d_tiny-flow"]
    color = result.baselines[1]
    assert color.recall[1] > 90 > result.baselines[0].recall[1]  # the made-up classes are colors
    assert [entry[0] for entry in result.skipped] == ["c0/s2_0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(f"{name}.features" for name in names[1:])
    write_result(tmp_path / "result.json", "baselines", result)
    assert result_to_dict("baselines", result)["baselines"][1]["recall"]["1"] == color.recall[1]
    with pytest.raises(ValueError, match="choose from color, flow"):
        create_histogram_model("sound")


def test_a_histogram_is_named_where_weights_are() -> None:
    assert load_eval_model("histogram:flow").metadata == create_histogram_model("flow").metadata
    with pytest.raises(ValueError, match="unknown histogram 'sound'"):
        load_eval_model("histogram:sound")
