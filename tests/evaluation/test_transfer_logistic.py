"""Logistic regression by LBFGS, accuracies, and the ways to normalize, each beside a slow twin."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from covid_cmsf.evaluation.probes.logistic import fit_logistic
from covid_cmsf.evaluation.transfer.logistic import (
    Hyperparameters,
    LabeledFeatures,
    LinearClassifier,
    NotFiniteError,
    accuracy,
    fit_classifier,
    mean_window_features,
    normalize_features,
    subset_features,
)
from tests.evaluation.factories import synthetic_features

CLOSE = 1e-4  # LBFGS stops where the loss changes by less than 1e-9, and there it is flat


def noisy_classes(num_rows: int, num_values: int, num_classes: int, *, seed: int = 0) -> LabeledFeatures:
    random = torch.Generator().manual_seed(seed)
    rows = torch.randn(num_rows, num_values, generator=random, dtype=torch.float64)
    scores = rows @ torch.randn(num_values, num_classes, generator=random, dtype=torch.float64)
    return LabeledFeatures(rows, (scores + 3 * torch.randn(scores.shape, generator=random)).argmax(1))


@pytest.mark.parametrize("weight_decay", [1e-2, 0.3])
def test_at_its_optimum_it_is_scikit_learns_logistic_regression(weight_decay: float) -> None:
    data = noisy_classes(200, 6, 4)
    mine = fit_classifier(data, Hyperparameters(50, 1.0, weight_decay), num_classes=4)
    theirs = LogisticRegression(C=1 / (weight_decay * 200), tol=1e-10, max_iter=10_000)
    theirs.fit(data.features.numpy(), data.labels.numpy())
    assert mine.num_steps < 50
    assert np.abs(mine.weight.numpy() - theirs.coef_).max() < CLOSE
    bias = mine.bias.numpy() - mine.bias.numpy().mean()
    assert np.abs(bias - (theirs.intercept_ - theirs.intercept_.mean())).max() < CLOSE
    ours = fit_logistic(data.features, data.labels, weight_decay)
    assert (mine.weight - ours.weight).abs().max() < CLOSE
    assert mine.predict(data.features).tolist() == theirs.predict(data.features.numpy()).tolist()


def test_steps_that_would_change_nothing_are_not_made() -> None:
    data = noisy_classes(100, 5, 3)
    short = fit_classifier(data, Hyperparameters(1, 1.0, 0.1), num_classes=3)
    long = fit_classifier(data, Hyperparameters(1000, 1.0, 0.1), num_classes=3)
    assert short.num_steps == 1 and long.num_steps < 20
    further = fit_classifier(data, Hyperparameters(long.num_steps, 1.0, 0.1), num_classes=3)
    assert torch.equal(further.weight, long.weight) and torch.equal(further.bias, long.bias)
    twice = (fit_classifier(data, Hyperparameters(7, 1e-3, 0.1), num_classes=3).weight for _ in range(2))
    assert torch.equal(*twice)


def test_one_slow_step_is_gradient_descent() -> None:
    """The first inner iteration goes lr / |gradient|_1 against the gradient, at 0 that of the softmax's errors."""
    data = noisy_classes(50, 4, 3)
    one_hot = torch.nn.functional.one_hot(data.labels, 3).double()
    errors = (1 / 3 - one_hot) / 50
    gradient = torch.cat([(errors.T @ data.features).flatten(), errors.sum(0)])
    found = fit_classifier(data, Hyperparameters(1, 1e-9, 0.0), num_classes=3)
    moved = torch.cat([found.weight.flatten(), found.bias])
    assert torch.allclose(moved / moved.norm(), -gradient / gradient.norm(), atol=1e-5)


def test_a_loss_that_is_not_finite_is_said() -> None:
    data = LabeledFeatures(torch.tensor([[1.0], [float("nan")]]), torch.tensor([0, 1]))
    with pytest.raises(NotFiniteError, match="not finite after"):
        fit_classifier(data, Hyperparameters(50, 1.0, 1.0), num_classes=2)


def test_of_equal_scores_the_smaller_label_is_answered() -> None:
    classifier = LinearClassifier(torch.tensor([[0.0], [1.0], [1.0]]), torch.zeros(3), 1)
    assert classifier.predict(torch.tensor([[1.0], [-1.0], [0.0]])).tolist() == [1, 0, 0]


def test_accuracies_equal_their_slow_twins() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        labels = random.choice([0, 1, 2, 5], size=30)  # classes 3 and 4 are not there
        answers = np.where(random.random(30) < 0.5, labels, random.integers(0, 6, 30))
        shares = []
        for label in sorted(set(labels.tolist())):
            members = [i for i in range(30) if labels[i] == label]
            shares.append(sum(answers[i] == label for i in members) / len(members))
        pair = torch.from_numpy(answers), torch.from_numpy(labels)
        assert accuracy(*pair, "mean_per_class") == pytest.approx(100 * sum(shares) / len(shares))
        hits = sum(a == b for a, b in zip(answers, labels, strict=True))
        assert accuracy(*pair, "top1") == pytest.approx(100 * hits / 30)
    with pytest.raises(ValueError, match="unknown metric 'top5'; choose from top1, mean_per_class"):
        accuracy(*pair, "top5")  # type: ignore[arg-type]


def test_rows_are_normalized_with_what_the_learned_rows_have() -> None:
    train, test = noisy_classes(40, 5, 3), noisy_classes(10, 5, 3, seed=1)
    assert normalize_features("none", train, test) == (train, test)
    unit = normalize_features("unit", train, test)
    for before, after in zip((train, test), unit, strict=True):
        for i, row in enumerate(before.features):
            assert torch.allclose(after.features[i], row / sum(float(value) ** 2 for value in row) ** 0.5)
    standardized, other = normalize_features("standardize", train, test)
    for column in range(5):
        values = unit[0].features[:, column].numpy()
        deviation = (values.var() + 1e-5) ** 0.5
        assert np.allclose(standardized.features[:, column], (values - values.mean()) / deviation)
        assert np.allclose(other.features[:, column], (unit[1].features[:, column].numpy() - values.mean()) / deviation)
    with pytest.raises(ValueError, match="unknown normalization 'l2'; choose from none, unit, standardize"):
        normalize_features("l2", train, test)


def test_raw_rows_are_means_of_windows_as_the_backbone_gives_them() -> None:
    features = synthetic_features()
    owners = torch.cat([features.window_videos, torch.tensor([5, 5])])
    windows = torch.cat([features.windows, torch.ones(2, 16)])
    several = type(features)(
        features.videos, features.features, windows, owners, torch.zeros(len(owners)), features.provenance
    )
    rows = mean_window_features(several)
    assert torch.allclose(rows[4], features.windows[4])
    assert torch.allclose(rows[5], (features.windows[5] + 2) / 3, atol=1e-6)
    with pytest.raises(
        ValueError, match="transfer needs the subsets train, val, test; val is missing, present: test, train"
    ):
        subset_features(features)


def test_rows_and_labels_must_fit() -> None:
    with pytest.raises(ValueError, match=r"features \(3, 2\) and labels \(2,\) are not"):
        LabeledFeatures(torch.zeros(3, 2), torch.zeros(2))
    with pytest.raises(ValueError, match="there are no features"):
        LabeledFeatures(torch.zeros(0, 2), torch.zeros(0))
