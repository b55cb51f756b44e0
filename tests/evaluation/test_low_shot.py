"""Low-shot classification: the nearest class mean of a few labeled videos, drawn from different sources."""

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.evaluation.features.file import save_features
from covid_cmsf.evaluation.low_shot import draw_labeled, evaluate_low_shot
from tests.evaluation.factories import synthetic_features


def test_it_is_that_of_loops() -> None:
    features = synthetic_features(noise=2.0)
    result = evaluate_low_shot(features, shots=[2], num_draws=3, seed=5)
    videos = features.videos
    train, test = ([i for i, one in enumerate(videos.subsets) if one == name] for name in ("train", "test"))
    middle = features.features[train].double().mean(0)
    unit = F.normalize(features.features.double() - middle, dim=1)
    known = videos.take(torch.tensor(train))
    right, confusion = [], [[0] * 4 for _ in range(4)]
    for draw in range(3):
        rows = draw_labeled(known, known.labels.unique(), 2, np.random.default_rng([5, 2, draw]))
        means = [unit[[train[number] for number in row]].sum(0) for row in rows.tolist()]
        for query in test:
            scores = [float(unit[query] @ F.normalize(mean, dim=0)) for mean in means]
            right.append(scores.index(max(scores)) == int(videos.labels[query]))
            confusion[int(videos.labels[query])][scores.index(max(scores))] += 1
    assert result.top1 == {2: pytest.approx(100 * sum(right) / len(right))}
    assert result.confusion == {2: confusion} and sum(map(sum, confusion)) == len(test) * 3
    shares = {f"c{label}": pytest.approx(100 * row[label] / sum(row)) for label, row in enumerate(confusion)}
    assert result.per_class == {2: shares}
    assert result.num_query == len(test) and result.num_classes == 4 and result.interval[2][0] <= result.top1[2]


def test_labeled_videos_are_of_different_sources_and_of_their_class() -> None:
    videos = synthetic_features().videos
    known = videos.take(torch.tensor([i for i, one in enumerate(videos.subsets) if one == "train"]))
    drawn = set()
    for seed in range(5):
        rows = draw_labeled(known, torch.arange(4), 4, np.random.default_rng(seed))
        assert rows.shape == (4, 4)
        for label, row in enumerate(rows.tolist()):
            assert len({known.sources[number] for number in row}) == 4  # a class has 4 sources of 2 videos
            assert {int(known.labels[number]) for number in row} == {label}
        drawn.add(tuple(rows[0].tolist()))
    assert len(drawn) > 1
    assert sorted(draw_labeled(known, torch.arange(4), 8, np.random.default_rng(0))[0].tolist()) == list(range(8))


def test_more_labels_help_and_too_many_are_refused(tmp_path: Path) -> None:
    features = synthetic_features(noise=2.0)
    result = evaluate_low_shot(features, shots=[1, 8])
    assert result.top1[8] > result.top1[1] and result.deviation[8] == 0 < result.deviation[1]
    with pytest.raises(ValueError, match=r"shots = \[1, 9\]: must be 1 to 8, the videos of class 'c0'"):
        evaluate_low_shot(features, shots=[1, 9])
    save_features(tmp_path / "rgb.features", features)
    done = CliRunner().invoke(app, ["evaluate", "low-shot", str(tmp_path / "rgb.features"), "--shots", "5"])
    assert done.exit_code == 0 and "mean over 20 draws; chance 25.0" in done.output, done.output
    assert "top-1 with 5 labeled per class: c0 " in done.output and "most often confused: c" in done.output
