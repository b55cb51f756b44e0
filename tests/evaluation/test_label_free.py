"""What needs no labels: neighbors of a video, its other window, agreement of two networks; slow twins beside them."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.evaluation.features.file import Features, save_features
from covid_cmsf.evaluation.knn import evaluate_knn
from covid_cmsf.evaluation.label_free import (
    label_free_measures,
    neighbor_agreement,
    source_retrieval,
    window_retrieval,
)
from covid_cmsf.evaluation.nearest import nearest_others
from covid_cmsf.evaluation.neighbors import find_neighbors
from covid_cmsf.evaluation.probes.linear import evaluate_linear
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from covid_cmsf.models.effective_rank import effective_rank
from tests.evaluation.factories import synthetic_features


def without_labels(features: Features) -> Features:
    """The features of an unlabeled store, all of whose videos are in `train`."""
    labels, subsets = torch.full_like(features.videos.labels, -1), ("train",) * len(features.videos)
    return replace(features, videos=replace(features.videos, labels=labels, class_names=(), subsets=subsets))


def with_windows(features: Features, starts: list[int], *, noise: float = 0.1) -> Features:
    """Every video with a window at each of `starts`, all near the video's feature."""
    generator = torch.Generator().manual_seed(0)
    windows = features.features.repeat_interleave(len(starts), 0)
    windows = windows + noise * torch.randn(windows.shape, generator=generator)
    videos = torch.arange(len(features.videos)).repeat_interleave(len(starts))
    all_starts = torch.tensor(starts).repeat(len(features.videos))
    return replace(features, windows=windows, window_videos=videos, window_starts=all_starts)


def centered(rows: torch.Tensor) -> torch.Tensor:
    return F.normalize(rows.double() - rows.double().mean(0), dim=1)


def test_the_neighbors_of_a_video_are_those_of_a_loop_without_itself() -> None:
    features = without_labels(synthetic_features())
    result = find_neighbors(features, k=4)
    unit, ids = centered(features.features), features.videos.ids
    assert [one.video for one in result.videos] == list(ids)
    for i, one in enumerate(result.videos):
        similar = {ids[j]: float(unit[i] @ unit[j]) for j in range(len(ids)) if j != i}
        expected = sorted(similar, key=lambda name: -similar[name])[:4]
        assert one.neighbors == expected
        assert one.similarities == pytest.approx([similar[name] for name in expected], abs=1e-5)
    some = find_neighbors(features, [ids[7], ids[2]], k=4)
    assert some.videos == [result.videos[7], result.videos[2]]
    with pytest.raises(ValueError, match=r"no video 'c0/s0_7' among the 48 of this file; did you mean 'c0/s0_"):
        find_neighbors(features, ["c0/s0_7"])
    with pytest.raises(ValueError, match="k = 48: must be 1 to 47, the number of other videos"):
        find_neighbors(features, k=48)


def test_identical_videos_are_neighbors_and_a_video_is_never_its_own() -> None:
    rows = torch.ones(6, 4) / 2
    for k in (1, 3, 5):
        found = nearest_others(rows, torch.arange(6), k)
        assert all(i not in row and len(set(row)) == k for i, row in enumerate(found.tolist()))


def test_a_windows_counterpart_is_looked_up_among_all_videos() -> None:
    features = with_windows(without_labels(synthetic_features()), [0, 4, 9], noise=0.15)  # windows of 8 frames
    result, count = window_retrieval(features)
    first, last = F.normalize(features.windows[0::3], dim=1), F.normalize(features.windows[2::3], dim=1)
    gallery = centered(last)
    queries = F.normalize(first.double() - last.double().mean(0), dim=1)
    hits = [int((gallery @ query).argmax()) == i for i, query in enumerate(queries)]
    assert result is not None and count == 48
    assert result == pytest.approx(100 * sum(hits) / 48) and 5 < result < 100
    measures = label_free_measures(features)
    assert measures.window_r1 == result and measures.window_chance == pytest.approx(100 / 48)
    assert measures.effective_rank == pytest.approx(effective_rank(features.features))


def test_windows_with_common_frames_say_nothing() -> None:
    features = with_windows(without_labels(synthetic_features()), [0, 7])
    measures = label_free_measures(features)
    assert (measures.window_r1, measures.window_chance, measures.num_window_videos) == (None, None, 0)


def test_a_sources_other_clip_is_looked_up_among_all_videos() -> None:
    features = without_labels(synthetic_features())
    names = list(features.videos.sources)
    names[5] = "alone"  # it is searched, and not asked
    features = replace(features, videos=replace(features.videos, sources=tuple(names)))
    unit, count = centered(features.features), {name: names.count(name) for name in names}
    hits, chances = [], []
    for i, name in enumerate(names):
        if count[name] > 1:
            similar = {j: float(unit[i] @ unit[j]) for j in range(len(names)) if j != i}
            hits.append(names[max(similar, key=lambda j: similar[j])] == name)
            chances.append((count[name] - 1) / (len(names) - 1))
    assert 0 < sum(hits) < len(hits) < len(names)
    expected = (100 * sum(hits) / len(hits), 100 * sum(chances) / len(chances), len(hits))
    assert source_retrieval(features) == pytest.approx(expected)
    measures = label_free_measures(features)
    assert (measures.source_r1, measures.source_chance, measures.num_source_videos) == pytest.approx(expected)


def test_videos_without_siblings_say_nothing_about_sources() -> None:
    features = without_labels(synthetic_features())
    features = replace(features, videos=replace(features.videos, sources=features.videos.ids))
    assert source_retrieval(features) == (None, None, 0)


def test_agreement_is_the_share_of_common_neighbors() -> None:
    first, second = without_labels(synthetic_features(seed=0)), without_labels(synthetic_features(seed=1))
    order = torch.randperm(48, generator=torch.Generator().manual_seed(0))[:40]  # matched by id
    second = replace(second, videos=second.videos.take(order), features=second.features[order])
    common = [name for name in first.videos.ids if name in second.videos.ids]
    rows = [
        centered(torch.stack([one.features[one.videos.ids.index(name)] for name in common])) for one in (first, second)
    ]
    shares = []
    for i in range(40):
        similar = [{j: float(unit[i] @ unit[j]) for j in range(40) if j != i} for unit in rows]
        found = [set(sorted(one, key=lambda j: -one[j])[:6]) for one in similar]
        shares.append(len(found[0] & found[1]) / 6)
    result = neighbor_agreement(first, second, k=6)
    assert result.percent == pytest.approx(100 * sum(shares) / 40) and result.num_videos == 40
    assert result.chance == pytest.approx(100 * 6 / 39) and result.percent > 2 * result.chance
    assert neighbor_agreement(first, first, k=6).percent == 100
    assert label_free_measures(first, [second], k=6).agreement == [result]
    few = replace(second, videos=second.videos.take(order[:0]), features=second.features[:0])
    with pytest.raises(ValueError, match="at least two videos in both files; these have 0"):
        neighbor_agreement(first, few)


@pytest.mark.parametrize("evaluate", [evaluate_retrieval, evaluate_knn, evaluate_linear])
def test_what_needs_labels_says_so_and_names_what_does_not(evaluate: object) -> None:
    with pytest.raises(ValueError, match=r"none of the 48 videos has a label.*`covid-cmsf evaluate neighbors`"):
        evaluate(without_labels(synthetic_features()))  # type: ignore[operator]


def test_the_commands_work_without_labels(tmp_path: Path) -> None:
    features = with_windows(without_labels(synthetic_features()), [0, 8])
    for name, one in (("rgb", features), ("flow", without_labels(synthetic_features(seed=1)))):
        save_features(tmp_path / name, one)
    command = ["evaluate", "neighbors", str(tmp_path / "rgb"), "--video", "c1/s0_0", "--k", "2"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.exception
    first, second = find_neighbors(features, ["c1/s0_0"], k=2).videos[0].neighbors
    assert "c1/s0_0" in result.output and first in result.output and second in result.output
    result = CliRunner().invoke(app, ["evaluate", "neighbors", str(tmp_path / "rgb")])
    assert "28 videos more" in result.output.replace("\n", " ")
    result = CliRunner().invoke(app, ["evaluate", "unlabeled", str(tmp_path / "rgb"), str(tmp_path / "flow")])
    assert result.exit_code == 0, result.exception
    assert "effective rank" in result.output and "percent of 48" in result.output and "48 videos" in result.output
