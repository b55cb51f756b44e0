"""Comparison of features files: hits are those of retrieval and kNN, common videos, verdicts."""

from dataclasses import replace

import pytest
import torch

from covid_cmsf.evaluation.compare import compare_features
from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.knn import evaluate_knn
from covid_cmsf.evaluation.render import compare_table
from covid_cmsf.evaluation.results import result_to_dict
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from tests.evaluation.factories import synthetic_features


def shuffled(features: Features, *, drop: int = 0) -> Features:
    order = torch.randperm(len(features.videos), generator=torch.Generator().manual_seed(1))[drop:]
    return replace(features, videos=features.videos.take(order), features=features.features[order])


def test_scores_are_those_of_retrieval_and_knn() -> None:
    first, second = synthetic_features(noise=2.0), synthetic_features(noise=1.0, seed=1)
    result = compare_features([("a", first), ("b", shuffled(second))])
    for name, features in (("a", first), ("b", second)):
        recall, top1 = evaluate_retrieval(features).recall, evaluate_knn(features, num_neighbors=(20,)).top1
        expected = {f"R@{k}": recall[k] for k in (1, 5, 10)} | {"kNN 20": top1[20]}
        assert result.scores[name] == pytest.approx(expected)
    found = {one.metric: one for one in result.comparisons}
    assert found["R@1"].difference.difference == pytest.approx(result.scores["b"]["R@1"] - result.scores["a"]["R@1"])
    assert result_to_dict("compare", result)["comparisons"][0]["metric"] == "R@1"
    compare_table(result)


def test_equal_features_show_no_difference_and_clear_ones_do() -> None:
    noisy, clear = synthetic_features(num_sources=30, noise=30.0), synthetic_features(num_sources=30, noise=0.1, seed=1)
    result = compare_features([("noisy", noisy), ("same", noisy), ("clear", clear)])
    verdicts = {one.second: one.verdict for one in result.comparisons if one.metric == "R@1"}
    assert verdicts == {"same": "no difference shown", "clear": "better"}
    back = compare_features([("clear", clear), ("noisy", noisy)])
    assert back.comparisons[0].verdict == "worse"


def test_several_comparisons_are_corrected() -> None:
    files = [(f"f{seed}", synthetic_features(noise=2.0, seed=seed)) for seed in range(4)]
    many = [one for one in compare_features(files).comparisons if one.metric == "R@1"]
    assert len(many) == 3
    assert min(one.corrected_p for one in many) == pytest.approx(
        min(1, 3 * min(one.difference.p_value for one in many))
    )


def test_only_common_videos_count_and_what_does_not_fit_is_refused() -> None:
    first, second = synthetic_features(), synthetic_features(seed=1)
    result = compare_features([("a", first), ("b", shuffled(second, drop=5))])
    assert result.num_gallery + result.num_query == len(first.videos) - 5
    with pytest.raises(ValueError, match="at least two features files"):
        compare_features([("a", first)])
    with pytest.raises(ValueError, match="at least two features files, each given once"):
        compare_features([("a", first), ("a", second)])
    with pytest.raises(ValueError, match="different protocols: clean and coclr"):
        compare_features([("a", first), ("b", synthetic_features(protocol="coclr"))])
    with pytest.raises(ValueError, match="disagree about the label"):
        other = replace(second, videos=replace(second.videos, labels=second.videos.labels.roll(9)))
        compare_features([("a", first), ("b", other)])
