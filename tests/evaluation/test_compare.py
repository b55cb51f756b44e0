"""Comparison of networks: hits are those of retrieval, kNN and the probe; seeds, splits, common videos, verdicts."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from covid_cmsf.cli.compare import find_runs
from covid_cmsf.evaluation.compare import CompareResult, MethodRun, compare_runs
from covid_cmsf.evaluation.features.file import Features, save_features
from covid_cmsf.evaluation.fusion import evaluate_fusion
from covid_cmsf.evaluation.knn import evaluate_knn
from covid_cmsf.evaluation.paired import paired_difference
from covid_cmsf.evaluation.probes.linear import evaluate_linear, measure_linear
from covid_cmsf.evaluation.render import compare_table
from covid_cmsf.evaluation.results import result_to_dict
from covid_cmsf.evaluation.retrieval import evaluate_retrieval
from tests.evaluation.factories import synthetic_features


def shuffled(features: Features, *, drop: int = 0) -> Features:
    order = torch.randperm(len(features.videos), generator=torch.Generator().manual_seed(1))[drop:]
    return replace(features, videos=features.videos.take(order), features=features.features[order])


def compare_features(files: Sequence[tuple[str, Features]]) -> CompareResult:
    return compare_runs([MethodRun(name, features) for name, features in files])


def of_split(features: Features, split: str) -> Features:
    return replace(features, provenance=features.provenance.model_copy(update={"split": split}))


def test_scores_are_those_of_retrieval_knn_and_the_probe() -> None:
    first, second = synthetic_features(noise=2.0), synthetic_features(noise=1.0, seed=1)
    result = compare_features([("a", first), ("b", shuffled(second))])
    for name, features in (("a", first), ("b", second)):
        recall, top1 = evaluate_retrieval(features).recall, evaluate_knn(features, num_neighbors=(20,)).top1
        expected = {f"R@{k}": recall[k] for k in (1, 5, 10)} | {"kNN 20": top1[20]}
        expected |= {"linear": evaluate_linear(features).scores.top1}
        assert result.scores[name] == pytest.approx(expected)
    found = {one.metric: one for one in result.comparisons}
    assert found["R@1"].difference.difference == pytest.approx(result.scores["b"]["R@1"] - result.scores["a"]["R@1"])
    assert result_to_dict("compare", result)["comparisons"][0]["metric"] == "R@1"
    compare_table(result)


def test_two_networks_are_fused_as_evaluate_fusion_does() -> None:
    first, second = synthetic_features(noise=2.0), synthetic_features(noise=1.5, seed=1)
    alone = MethodRun("first", first)
    result = compare_runs([alone, MethodRun("both", shuffled(first), second=shuffled(second, drop=3))])
    kept = shuffled(second, drop=3)
    expected = evaluate_fusion(first, kept)
    assert result.scores["both"]["R@1"] == pytest.approx(expected.retrieval.recall[1])
    assert result.scores["both"]["linear"] == pytest.approx(expected.linear.top1)
    assert result.scores["both"]["R@1"] != result.scores["first"]["R@1"] and len(result.features) == 3
    with pytest.raises(ValueError, match="both: both networks have to be measured on the same split"):
        compare_runs([alone, MethodRun("both", first, second=of_split(second, "2"))])


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
    with pytest.raises(ValueError, match="at least two methods"):
        compare_features([("a", first)])
    with pytest.raises(ValueError, match="at least two methods; runs of one name are seeds"):
        compare_features([("a", first), ("a", second)])
    with pytest.raises(ValueError, match="a has the same features twice"):
        compare_features([("a", first), ("a", first), ("b", second)])
    with pytest.raises(ValueError, match="3 and 2 seeds"):
        compare_features([("a" if i < 3 else "b", synthetic_features(seed=i)) for i in range(5)])
    with pytest.raises(ValueError, match="a was measured on split 1, b on 2"):
        compare_features([("a", first), ("b", of_split(second, "2"))])
    with pytest.raises(ValueError, match="different protocols: clean and coclr"):
        compare_features([("a", first), ("b", synthetic_features(protocol="coclr"))])
    with pytest.raises(ValueError, match="disagree about the label"):
        other = replace(second, videos=replace(second.videos, labels=second.videos.labels.roll(9)))
        compare_features([("a", first), ("b", other)])


def test_several_runs_of_a_method_are_its_seeds() -> None:
    starts, ends = ([synthetic_features(noise=noise, seed=seed) for seed in range(3)] for noise in (3.0, 1.5))
    result = compare_features([("a", one) for one in starts] + [("b", one) for one in ends])
    (found,) = [one.difference for one in result.comparisons if one.metric == "linear"]
    hits = [np.stack([measure_linear(one)[1].hits.numpy() for one in files]) for files in (starts, ends)]
    sources = measure_linear(starts[0])[1].videos.sources
    by_hand = paired_difference(hits[0], hits[1], sources)
    assert found.num_seeds == 3 and found.first == pytest.approx(by_hand.first)
    assert found.interval == pytest.approx(by_hand.interval) and found.p_value == by_hand.p_value


def test_seeds_with_numbers_are_paired_by_number_and_one_file_with_all() -> None:
    starts, ends = ([synthetic_features(noise=noise, seed=seed) for seed in range(3)] for noise in (3.0, 1.5))
    some = [MethodRun("a", starts[i], i) for i in (0, 1)] + [MethodRun("b", ends[i], i) for i in (2, 1)]
    only = compare_runs(some, linear=False).comparisons[0].difference
    alone = compare_features([("a", starts[1]), ("b", ends[1])]).comparisons[0].difference
    assert only == alone
    one = compare_runs([MethodRun("a", starts[0]), *(MethodRun("b", ends[i], i) for i in (0, 1, 2))], linear=False)
    assert one.comparisons[0].difference.num_seeds == 3
    with pytest.raises(ValueError, match="no seed in common"):
        compare_runs([MethodRun("a", starts[0], 0), MethodRun("b", ends[1], 1)], linear=False)


def test_splits_count_the_same_and_are_not_mixed() -> None:
    """Split 2 has four times the videos of split 1, and the difference is the mean of both."""
    small = [synthetic_features(noise=noise, seed=seed) for seed, noise in enumerate((6.0, 1.0))]
    large = [of_split(synthetic_features(num_sources=24, noise=noise, seed=9), "2") for noise in (6.0, 5.0)]
    large[1] = replace(large[1], provenance=large[1].provenance.model_copy(update={"fingerprint": "other"}))
    alone = [compare_features([("a", a), ("b", b)]).comparisons[0].difference for a, b in (small, large)]
    both = compare_features([("a", small[0]), ("b", small[1]), ("a", large[0]), ("b", large[1])])
    found = both.comparisons[0].difference
    assert found.difference == pytest.approx((alone[0].difference + alone[1].difference) / 2)
    assert (found.num_splits, found.num_seeds) == (2, 1) and both.splits == ("1", "2")
    assert found.num_queries == alone[0].num_queries + alone[1].num_queries == both.num_query


def test_arguments_are_files_folders_of_runs_and_names(tmp_path: Path) -> None:
    for name in ("a", "b=1"):
        (tmp_path / name).mkdir()
        save_features(tmp_path / name / "features.safetensors", synthetic_features())
    file = tmp_path / "a" / "features.safetensors"
    found = find_runs([str(file), str(tmp_path / "a"), f"msf={file}", f"x={tmp_path / 'b=1'}", str(tmp_path / "b=1")])
    odd = tmp_path / "b=1" / "features.safetensors"
    assert [(one.method, one.features) for one in found] == [
        (str(file), file),
        (str(tmp_path / "a"), file),
        ("msf", file),
        ("x", odd),
        (str(tmp_path / "b=1"), odd),
    ]
    (fused,) = find_runs([f"both={file}+{tmp_path / 'b=1'}"])
    assert (fused.method, fused.features, fused.second) == ("both", file, odd)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="has no features.safetensors: covid-cmsf extract"):
        find_runs([str(tmp_path / "empty")])
    with pytest.raises(FileNotFoundError, match="give a features file, the folder of a run, or PLAN:STAGE"):
        find_runs(["nothing:here"])
