"""The search: it finds what was planted, survives kills, and never mixes trials of different features."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from optuna.distributions import FloatDistribution, IntDistribution

from covid_cmsf.evaluation.features.file import Features
from covid_cmsf.evaluation.transfer import evaluate as evaluate_module
from covid_cmsf.evaluation.transfer import search as searching
from covid_cmsf.evaluation.transfer.evaluate import evaluate_transfer, retrain_best
from covid_cmsf.evaluation.transfer.logistic import Hyperparameters, LabeledFeatures, NotFiniteError, fit_classifier
from covid_cmsf.evaluation.transfer.search import SEARCH_SPACE, Trial, rank_trials, search, val_accuracy
from tests.evaluation.factories import synthetic_features

# Ray Tune needs more packages than Ray.
HAS_RAY_TUNE = all(importlib.util.find_spec(name) for name in ("ray", "pandas", "pyarrow", "fsspec", "requests"))


@pytest.fixture(autouse=True)
def quick_space(monkeypatch: pytest.MonkeyPatch) -> None:
    """The paper's thousand iterations take seconds a trial."""
    monkeypatch.setitem(SEARCH_SPACE, "iterations", IntDistribution(1, 5, log=True))


def planted(num_rows: int, seed: int) -> LabeledFeatures:
    """Three signals among 60 values, a rare and a frequent class, some labels wrong.

    Weak decay learns the wrong labels by heart; under strong decay only the bias is left, and it knows one answer.
    """
    random = torch.Generator().manual_seed(seed)
    labels = (torch.rand(num_rows, generator=random) < 0.3).long()
    rows = torch.randn(num_rows, 60, generator=random)
    rows[:, :3] += 2.5 * (labels[:, None] - 0.5)
    wrong = torch.rand(num_rows, generator=random) < 0.12
    return LabeledFeatures(0.2 * rows, torch.where(wrong, 1 - labels, labels))


@pytest.mark.slow
def test_the_search_finds_a_planted_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEARCH_SPACE, "iterations", IntDistribution(10, 12, log=True))
    monkeypatch.setitem(SEARCH_SPACE, "lr", FloatDistribution(0.5, 1.0, log=True))
    train, val = planted(90, 0), planted(2000, 1)

    def at(weight_decay: float) -> float:
        value = val_accuracy(
            Hyperparameters(11, 0.7, weight_decay), train, val, metric="top1", num_classes=2, device="cpu"
        )  # fmt: skip
        assert value is not None
        return value

    grid = {10.0**exponent: at(10.0**exponent) for exponent in range(-9, 1)}
    best = max(grid.values())
    assert grid[1e-9] < best - 5 and grid[1.0] < best - 5, "nothing is planted"
    found = search(train, val, num_trials=30)[0]
    assert found.value is not None and found.value >= best - 0.5
    assert 1e-5 < found.hyperparameters.weight_decay < 0.3


def noisy(num_rows: int, seed: int) -> LabeledFeatures:
    random = torch.Generator().manual_seed(seed)
    labels = torch.arange(num_rows) % 3
    rows = torch.randn(num_rows, 4, generator=random)
    rows[:, 0] += labels
    return LabeledFeatures(rows, labels)


TRAIN, VAL = noisy(30, 0), noisy(60, 1)


@pytest.mark.slow
def test_the_same_search_tries_the_same_settings(tmp_path: Path) -> None:
    first = search(TRAIN, VAL, num_trials=13)
    assert search(TRAIN, VAL, num_trials=13, journal=tmp_path / "journal") == first
    assert search(TRAIN, VAL, num_trials=13, seed=1) != first
    for trial in first:
        assert 1e-6 <= trial.hyperparameters.lr <= 1 and 1e-9 <= trial.hyperparameters.weight_decay <= 1


def test_the_space_is_the_papers() -> None:
    lr, decay = SEARCH_SPACE["lr"], SEARCH_SPACE["weight_decay"]
    assert (lr.low, lr.high, decay.low, decay.high) == (1e-6, 1, 1e-9, 1)
    assert all(one.log for one in SEARCH_SPACE.values())


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["between trials", "within a trial", "within a line"])
def test_a_killed_search_continues_to_the_same_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    whole = search(TRAIN, VAL, num_trials=14, journal=tmp_path / "whole")
    calls = []

    def killed(*arguments: object, **options: object) -> float | None:
        calls.append(1)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return val_accuracy(*arguments, **options)  # type: ignore[arg-type]

    journal = tmp_path / "journal"
    if moment == "between trials":
        search(TRAIN, VAL, num_trials=11, journal=journal)
    else:
        monkeypatch.setattr(searching, "val_accuracy", killed)
        with pytest.raises(KeyboardInterrupt):
            search(TRAIN, VAL, num_trials=14, journal=journal)
        monkeypatch.undo()
        monkeypatch.setitem(SEARCH_SPACE, "iterations", IntDistribution(1, 5, log=True))
    if moment == "within a line":
        with journal.open("ab") as file:
            file.write(b'{"op_code":6,"worker_id":"')
    advanced: list[int] = []
    again = search(TRAIN, VAL, num_trials=14, journal=journal, on_trial=lambda: advanced.append(1))
    assert again == whole and len(advanced) == 14


def test_fewer_trials_than_there_are_means_the_first_ones(tmp_path: Path) -> None:
    search(TRAIN, VAL, num_trials=6, journal=tmp_path / "journal")
    assert search(TRAIN, VAL, num_trials=3, journal=tmp_path / "journal") == search(TRAIN, VAL, num_trials=3)


def test_trials_of_other_features_are_refused_unless_forced(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    search(TRAIN, VAL, num_trials=2, journal=journal, data_fingerprint="this model")
    for changed in ({"data_fingerprint": "another"}, {"data_fingerprint": "this model", "metric": "mean_per_class"}):
        with pytest.raises(FileExistsError, match="journal holds trials of other features or options; --force"):
            search(TRAIN, VAL, num_trials=2, journal=journal, **changed)  # type: ignore[arg-type]
    forced = search(TRAIN, VAL, num_trials=2, journal=journal, data_fingerprint="another", replace=True)
    assert len(forced) == 2


def test_equals_are_ranked_by_decay_iterations_and_rate() -> None:
    settings = [
        Hyperparameters(9, 0.1, 0.2),
        Hyperparameters(2, 0.5, 0.2),
        Hyperparameters(2, 0.1, 0.2),
        Hyperparameters(1, 0.1, 0.1),
    ]
    trials = [Trial(hyperparameters, 70.0) for hyperparameters in settings]
    worse, lost = Trial(Hyperparameters(1, 0.1, 1.0), 60.0), Trial(Hyperparameters(1, 0.1, 1.0), None)
    assert rank_trials([lost, worse, *trials[::-1]]) == [trials[2], trials[1], trials[0], trials[3], worse]


def test_a_setting_that_diverges_loses_and_does_not_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges_above(data: LabeledFeatures, hyperparameters: Hyperparameters, **options: object) -> object:
        if hyperparameters.lr > 1e-3:
            raise NotFiniteError("far away")
        return fit_classifier(data, hyperparameters, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(searching, "fit_classifier", diverges_above)
    found = search(TRAIN, VAL, num_trials=12)
    assert 0 < len(found) < 12 and all(trial.hyperparameters.lr <= 1e-3 for trial in found)
    monkeypatch.setitem(SEARCH_SPACE, "lr", FloatDistribution(0.1, 1.0, log=True))
    with pytest.raises(RuntimeError, match="none of 3 trials had a finite loss"):
        search(TRAIN, VAL, num_trials=3)


def test_a_best_setting_that_diverges_on_more_rows_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    sane = LabeledFeatures(torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]))
    trials = [Trial(Hyperparameters(50, 1.0, 1.0), 90.0), Trial(Hyperparameters(1, 1e-6, 1e-9), 80.0)]
    assert retrain_best(trials, sane, num_classes=2, device="cpu")[0] is trials[0]

    def diverges_far(data: LabeledFeatures, hyperparameters: Hyperparameters, **options: object) -> object:
        if hyperparameters.lr > 0.5:
            raise NotFiniteError("far away")
        return fit_classifier(data, hyperparameters, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(evaluate_module, "fit_classifier", diverges_far)
    assert retrain_best(trials, sane, num_classes=2, device="cpu")[0] is trials[1]
    with pytest.raises(RuntimeError, match="all trials diverge"):
        retrain_best(trials[:1], sane, num_classes=2, device="cpu")


@pytest.mark.skipif(HAS_RAY_TUNE, reason="Ray Tune is installed")
def test_without_ray_the_error_says_how_to_get_it(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"needs Ray Tune .*pip install 'covid-cmsf\[ray\]'"):
        search(TRAIN, VAL, num_trials=2, executor="ray", journal=tmp_path / "journal")


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY_TUNE, reason="needs Ray Tune")
def test_ray_and_the_local_search_share_a_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    advanced: list[int] = []
    found = search(
        TRAIN, VAL, num_trials=4, executor="ray", journal=journal, on_trial=lambda: advanced.append(1)
    )  # fmt: skip
    assert len(found) == 4 and len(advanced) == 4
    again = search(TRAIN, VAL, num_trials=6, journal=journal)
    assert len(again) == 6 and set(found) <= set(again)


def test_wrong_options_are_said(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="num_trials = 0: must be at least 1"):
        search(TRAIN, VAL, num_trials=0)
    with pytest.raises(ValueError, match="unknown executor 'slurm'; choose from local, ray"):
        search(TRAIN, VAL, executor="slurm")
    with pytest.raises(FileNotFoundError, match="no folder .*nowhere to write journal to"):
        search(TRAIN, VAL, journal=tmp_path / "nowhere" / "journal")


def three_parts(seed: int = 0) -> Features:
    """Made-up features with a subset val: the last training source of each class."""
    features = synthetic_features(noise=2.0, seed=seed)
    subsets = tuple(
        "val" if "s5_" in video else subset
        for video, subset in zip(features.videos.ids, features.videos.subsets, strict=True)
    )
    return replace(features, videos=replace(features.videos, subsets=subsets))


def test_any_features_with_three_parts_can_be_evaluated_and_are_not_twice(tmp_path: Path) -> None:
    features = three_parts()
    result = evaluate_transfer(features, tmp_path, dataset="mine", num_trials=5)
    assert result.sizes == {"train": 24, "val": 8, "test": 16} and result.value == result.top1
    assert {path.name for path in tmp_path.iterdir()} == {"trials.journal", "result.json"}
    written = json.loads((tmp_path / "result.json").read_text())
    assert written["kind"] == "transfer" and written["hyperparameters"] == result.hyperparameters
    assert written["features"][0]["fingerprint"] == "f0"
    time = (tmp_path / "trials.journal").stat().st_mtime_ns
    assert evaluate_transfer(features, tmp_path, dataset="mine", num_trials=5) == result
    assert (tmp_path / "trials.journal").stat().st_mtime_ns == time, "it was run again"
    with pytest.raises(FileExistsError, match="trials of other features"):
        evaluate_transfer(three_parts(seed=1), tmp_path, dataset="mine", num_trials=5)
    other = evaluate_transfer(three_parts(seed=1), tmp_path, dataset="mine", num_trials=5, replace=True)
    assert other.features[0]["fingerprint"] == "f1"


def test_the_test_number_is_that_of_a_classifier_of_train_and_val(tmp_path: Path) -> None:
    features = three_parts()
    result = evaluate_transfer(
        features, tmp_path, dataset="mine", metric="mean_per_class", normalize="none", num_trials=4
    )
    learned = torch.tensor([subset != "test" for subset in features.videos.subsets])
    rows, labels = features.windows, features.videos.labels
    hyperparameters = Hyperparameters(**result.hyperparameters)  # type: ignore[arg-type]
    classifier = fit_classifier(LabeledFeatures(rows[learned], labels[learned]), hyperparameters, num_classes=4)
    right = classifier.predict(rows[~learned]) == labels[~learned]
    shares = [float(right[labels[~learned] == label].double().mean()) for label in range(4)]
    assert list(result.per_class.values()) == pytest.approx([100 * share for share in shares])
    counts = [
        [int(((labels[~learned] == i) & (classifier.predict(rows[~learned]) == j)).sum()) for j in range(4)]
        for i in range(4)
    ]
    assert result.confusion == counts
    assert result.value == pytest.approx(25 * sum(shares)) and result.metric == "mean_per_class"
