"""Paired differences against loops, and that their intervals cover what they should."""

import numpy as np
import pytest

from covid_cmsf.evaluation import paired
from covid_cmsf.evaluation.paired import (
    PairedHits,
    describe_difference,
    difference_over_splits,
    holm,
    paired_difference,
    resampled_differences,
)

SOURCES = ["a", "a", "b", "c", "c", "c"]
FIRST = np.array([[1, 0, 0, 1, 0, 1], [1, 1, 0, 1, 0, 0]], dtype=bool)
SECOND = np.array([[1, 1, 1, 0, 0, 1], [1, 1, 0, 1, 1, 0]], dtype=bool)


def test_the_difference_and_its_parts_are_counted_as_by_hand() -> None:
    found = paired_difference(FIRST, SECOND, SOURCES)
    assert (found.first, found.second) == pytest.approx((50, 200 / 3))
    assert found.difference == pytest.approx(200 / 12)
    assert (found.repaired, found.broken) == (1.5, 0.5)
    assert (found.num_queries, found.num_sources, found.num_seeds) == (6, 3, 2)


def test_resamples_are_those_of_a_loop_over_drawn_seeds_and_sources() -> None:
    sums, counts = np.array([[1.0, 1.0, -1.0], [0.0, 0.0, 1.0]]), np.array([2.0, 1.0, 3.0])
    fast = resampled_differences([(sums, counts)], num_resamples=50, seed=4)
    rng = np.random.default_rng(4)
    drawn_sources = rng.multinomial(3, [1 / 3] * 3, size=50)
    drawn_seeds = rng.multinomial(2, [1 / 2] * 2, size=50)
    by_source = {name: [i for i, source in enumerate(SOURCES) if source == name] for name in "abc"}
    for value, times_sources, times_seeds in zip(fast, drawn_sources, drawn_seeds, strict=True):
        differences = []
        for seed, times_seed in enumerate(times_seeds):
            for name, times in zip("abc", times_sources, strict=True):
                for query in by_source[name] * times * times_seed:
                    differences.append(int(SECOND[seed, query]) - int(FIRST[seed, query]))
        assert value == pytest.approx(100 * np.mean(differences))


def test_many_sources_are_drawn_by_kind_with_the_same_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    sums, counts = rng.integers(-1, 2, size=(2, 400)).astype(float), rng.integers(1, 3, size=400).astype(float)
    one_by_one = resampled_differences([(sums, counts)], num_resamples=20_000, seed=0)
    monkeypatch.setattr(paired, "MANY_SOURCES", 100)
    by_kind = resampled_differences([(sums, counts)], num_resamples=20_000, seed=0)
    assert not np.array_equal(one_by_one, by_kind)
    error = one_by_one.std() / 20_000**0.5
    assert by_kind.mean() == pytest.approx(one_by_one.mean(), abs=6 * error)
    assert by_kind.std() == pytest.approx(one_by_one.std(), rel=0.03)
    assert np.quantile(by_kind, [0.025, 0.975]) == pytest.approx(np.quantile(one_by_one, [0.025, 0.975]), abs=0.4)


def test_resamples_do_not_depend_on_how_many_are_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = [(np.array([[1.0, 1.0, -1.0], [0.0, 0.0, 1.0]]), np.array([2.0, 1.0, 3.0]))]
    whole = resampled_differences(totals, num_resamples=50, seed=4)
    monkeypatch.setattr(paired, "MAX_DRAWS", 21)
    assert np.array_equal(resampled_differences(totals, num_resamples=50, seed=4), whole)


def test_over_splits_resamples_are_those_of_a_loop_with_one_draw_of_seeds_for_all() -> None:
    splits = {"a": (FIRST, SECOND, SOURCES), "b": (SECOND[:, 2:], FIRST[:, 2:], ["x", "y", "y", "x"])}
    found = difference_over_splits([PairedHits(*one) for one in splits.values()], num_resamples=40, seed=7)
    rng = np.random.default_rng(7)
    names = {split: sorted(set(one[2])) for split, one in splits.items()}
    drawn = {split: rng.multinomial(len(own), [1 / len(own)] * len(own), size=40) for split, own in names.items()}
    seeds = rng.multinomial(2, [1 / 2] * 2, size=40)
    values = []
    for number in range(40):
        means = []
        for split, (first, second, sources) in splits.items():
            differences = []
            for seed, times_seed in enumerate(seeds[number]):
                for name, times in zip(names[split], drawn[split][number], strict=True):
                    for query in [i for i, source in enumerate(sources) if source == name] * times * times_seed:
                        differences.append(int(second[seed, query]) - int(first[seed, query]))
            means.append(np.mean(differences))
        values.append(100 * np.mean(means))
    assert found.interval == pytest.approx(tuple(np.quantile(values, [0.025, 0.975])))
    assert found.difference == pytest.approx(100 * (2 / 12 - 1 / 8) / 2)
    assert (found.num_splits, found.num_seeds, found.num_queries, found.num_sources) == (2, 2, 10, 5)
    with pytest.raises(ValueError, match="different numbers of seeds"):
        difference_over_splits([PairedHits(*splits["a"]), PairedHits(FIRST[:1], SECOND[:1], SOURCES)])


def test_a_method_without_seeds_is_compared_with_every_seed() -> None:
    alone = paired_difference(FIRST[0], SECOND, SOURCES, seed=1)
    repeated = paired_difference(np.stack([FIRST[0]] * 2), SECOND, SOURCES, seed=1)
    assert alone == repeated and alone.num_seeds == 2


def test_clips_of_one_source_count_as_one_observation() -> None:
    rng = np.random.default_rng(0)
    first, gain = rng.random(40) < 0.5, rng.random(40) < 0.2
    single = paired_difference(first, first | gain, [str(i) for i in range(40)])
    copied = paired_difference(
        np.repeat(first, 9), np.repeat(first | gain, 9), [str(i) for i in range(40) for _ in range(9)]
    )
    assert copied.interval == pytest.approx(single.interval)


def test_the_interval_covers_the_true_difference_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    covered, truth = 0, 9.5  # 0.1 less what is cut off above 1: 0.1 ** 2 / 2
    for trial in range(200):
        easy = np.repeat(rng.random(60), 3)  # hardness of a source
        first, second = (rng.random(180) < easy, rng.random(180) < np.clip(easy + 0.1, 0, 1))
        found = paired_difference(first, second, [str(i // 3) for i in range(180)], num_resamples=500, seed=trial)
        covered += found.interval[0] <= truth <= found.interval[1]
    assert 180 <= covered <= 200  # 95% of 200 is 190


def test_holm_multiplies_the_smallest_by_the_number_of_comparisons() -> None:
    assert holm({"a": 0.03, "b": 0.01, "c": 0.04}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
    assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_the_verdict_says_what_the_p_value_allows() -> None:
    assert describe_difference(3.0, 0.01) == "better"
    assert describe_difference(-3.0, 0.01) == "worse"
    assert describe_difference(3.0, 0.06) == "no difference shown"
    same = paired_difference(FIRST, FIRST, SOURCES)
    assert (same.p_value, same.interval, same.verdict) == (1.0, (0.0, 0.0), "no difference shown")


def test_other_queries_or_seeds_are_an_error() -> None:
    with pytest.raises(ValueError, match="the same queries: 6 and 5 answers"):
        paired_difference(FIRST, SECOND[:, :5], SOURCES)
    with pytest.raises(ValueError, match="2 and 3 seeds"):
        paired_difference(FIRST, np.concatenate([SECOND, SECOND[:1]]), SOURCES)
