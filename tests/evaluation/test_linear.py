"""Linear probes: against scikit-learn, chosen without the test subset, and the recipe of Han et al."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.evaluation import chunks
from covid_cmsf.evaluation.features.subsets import subset_indices
from covid_cmsf.evaluation.probes.linear import (
    PENALTIES,
    epoch_batches,
    evaluate_linear,
    standardize,
    train_coclr_probe,
    train_probe,
)
from covid_cmsf.evaluation.probes.logistic import fit_logistic
from covid_cmsf.evaluation.results import compute_scores
from tests.evaluation.factories import synthetic_features


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0, 10.0])
@pytest.mark.parametrize("num_classes", [2, 5])
def test_logistic_regression_is_scikit_learns(penalty: float, num_classes: int) -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    rng = np.random.default_rng(0)
    labels = rng.integers(num_classes, size=150)
    rows = rng.normal(size=(150, 12)) + 0.7 * rng.normal(size=(num_classes, 12))[labels]
    ours = fit_logistic(torch.from_numpy(rows), torch.from_numpy(labels), penalty)
    # Of two classes scikit-learn keeps the difference of our two rows of weights, which halves their squares.
    strength = (2 if num_classes == 2 else 1) / (penalty * 150)
    theirs = sklearn.LogisticRegression(C=strength, tol=1e-10, max_iter=10_000).fit(rows, labels)
    test = rng.normal(size=(50, 12))
    answers = ours.probabilities(torch.from_numpy(test), num_classes).numpy()
    assert np.abs(answers - theirs.predict_proba(test)).max() < 1e-4
    if num_classes > 2:
        assert np.abs(ours.weight.numpy() - theirs.coef_).max() < 1e-3 * max(1.0, np.abs(theirs.coef_).max())


def test_the_probe_is_scikit_learns_on_standardized_features() -> None:
    sklearn = pytest.importorskip("sklearn.linear_model")
    features = synthetic_features(5, 9, noise=2.0)
    result = evaluate_linear(features)
    train, test = (subset_indices(features.videos, name) for name in ("train", "test"))
    rows = features.features.double().numpy()
    mean, deviation = rows[train].mean(0), np.sqrt(rows[train].var(0) + 1e-5)
    rows, labels = (rows - mean) / deviation, features.videos.labels.numpy()
    assert result.penalty is not None
    theirs = sklearn.LogisticRegression(C=1 / (result.penalty * len(train)), tol=1e-10, max_iter=10_000)
    accuracy = 100 * theirs.fit(rows[train], labels[train]).score(rows[test], labels[test])
    assert result.scores.top1 == pytest.approx(accuracy)


def test_a_warm_start_ends_at_the_same_optimum() -> None:
    features = synthetic_features(noise=2.0)
    rows, labels = standardize(features.features, features.features)[0], features.videos.labels
    first = fit_logistic(rows, labels, 1.0)
    cold, warm = fit_logistic(rows, labels, 0.01), fit_logistic(rows, labels, 0.01, init=first)
    assert torch.allclose(cold.weight, warm.weight, atol=1e-4)


@pytest.mark.parametrize("penalty", [1e-4, 0.03, 3.0])
def test_features_that_nearly_lie_in_a_plane_are_fitted_to_the_optimum(penalty: float) -> None:
    generator = torch.Generator().manual_seed(0)
    spread = torch.logspace(0, -7, 60, dtype=torch.float64)  # what networks that lose rank give
    turn = torch.linalg.qr(torch.randn(60, 60, generator=generator, dtype=torch.float64)).Q
    rows = torch.randn(90, 60, generator=generator, dtype=torch.float64) * spread @ turn + 5.0
    labels = torch.randint(6, (90,), generator=generator)
    fitted = fit_logistic(rows, labels, penalty)
    weight, bias = fitted.weight.clone().requires_grad_(), fitted.bias.clone().requires_grad_()
    (F.cross_entropy(F.linear(rows, weight, bias), labels) + penalty / 2 * weight.square().sum()).backward()
    assert weight.grad is not None and bias.grad is not None
    assert float(weight.grad.abs().max()) < 1e-5 and float(bias.grad.abs().max()) < 1e-6


@pytest.mark.parametrize("penalty", [1e-4, 1e-2, 1.0])
def test_large_sets_are_fitted_in_fp32_to_nearly_the_same_optimum(
    monkeypatch: pytest.MonkeyPatch, penalty: float
) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(8, (900,), generator=generator)
    rows = torch.randn(8, 24, generator=generator)[labels] + 1.5 * torch.randn(900, 24, generator=generator)
    exact = fit_logistic(rows.double(), labels, penalty)
    monkeypatch.setattr(chunks, "CHUNK_VALUES", 100 * 24)
    fast = fit_logistic(rows, labels, penalty)
    assert fast.weight.dtype == torch.float64
    torch.testing.assert_close(fast.probabilities(rows, 8), exact.probabilities(rows, 8), rtol=0, atol=2e-3)
    assert torch.equal(fast.predict(rows), fast.probabilities(rows, 8).argmax(1))


def test_the_penalty_is_chosen_without_the_test_part() -> None:
    features = synthetic_features(noise=2.0)
    before = evaluate_linear(features)
    test = subset_indices(features.videos, "test")
    changed, labels = features.features.clone(), features.videos.labels.clone()
    changed[test], labels[test] = changed[test].flip(0), (labels[test] + 1) % 4
    after = evaluate_linear(replace(features, features=changed, videos=replace(features.videos, labels=labels)))
    assert (before.penalty, before.val_accuracy) == (after.penalty, after.val_accuracy)
    assert len(before.val_accuracy) == len(PENALTIES)


def test_the_probe_is_deterministic_and_refits_on_all_of_train() -> None:
    features = synthetic_features(noise=2.0)
    assert evaluate_linear(features) == evaluate_linear(features)
    train, test = (subset_indices(features.videos, name) for name in ("train", "test"))
    probe = train_probe(features, train, test)
    gallery, queries = standardize(features.features[train], features.features[train], features.features[test])
    refitted = fit_logistic(gallery, features.videos.labels[train], probe.details["penalty"])
    assert torch.allclose(refitted.probabilities(queries, 4), probe.probabilities)


def test_classes_that_were_not_seen_have_probability_zero() -> None:
    rows = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([1, 3] * 10)
    answers = fit_logistic(rows, labels, 0.1).probabilities(rows, 5)
    assert answers.shape == (20, 5) and not answers[:, [0, 2, 4]].any()
    assert torch.allclose(answers.sum(1), torch.ones(20).double())


def test_bad_probes_are_errors() -> None:
    rows = torch.randn(4, 3)
    with pytest.raises(ValueError, match="at least two classes"):
        fit_logistic(rows, torch.zeros(4, dtype=torch.int64), 0.1)
    with pytest.raises(ValueError, match="above 0"):
        fit_logistic(rows, torch.tensor([0, 1, 0, 1]), 0.0)


def test_scores_are_those_of_loops() -> None:
    rng = np.random.default_rng(0)
    answers = torch.from_numpy(rng.dirichlet(np.ones(7), size=60)).float()
    answers[::5] = 1 / 7  # ties
    videos = synthetic_features(7, 6).videos.take(torch.arange(60))
    result = compute_scores(answers, videos)
    top1 = top5 = 0
    confusion = np.zeros((7, 7), dtype=int)
    for row, label in zip(answers.tolist(), videos.labels.tolist(), strict=True):
        order = sorted(range(7), key=lambda c: (-row[c], c))
        top1, top5 = top1 + (order[0] == label), top5 + (label in order[:5])
        confusion[label, order[0]] += 1
    assert result.top1 == pytest.approx(100 * top1 / 60) and result.top5 == pytest.approx(100 * top5 / 60)
    assert result.confusion == confusion.tolist() and result.num_videos == 60
    by_class = {f"c{c}": 100 * confusion[c, c] / max(1, confusion[c].sum()) for c in range(5)}
    assert result.per_class == pytest.approx(by_class)
    assert compute_scores(answers[:, :5].softmax(1), videos).top5 is None


def test_the_recipe_of_han_et_al_step_by_step() -> None:
    features = synthetic_features(noise=2.0, protocol="coclr")
    train, test = (subset_indices(features.videos, name) for name in ("train", "test"))
    rows, labels = features.features, features.videos.labels
    found = train_coclr_probe(rows[train], labels[train], rows[test], labels[test], 4, seed=3)

    torch.manual_seed(3)
    norm, layer = torch.nn.BatchNorm1d(16), torch.nn.Linear(16, 4)
    torch.nn.init.normal_(layer.weight, std=0.01)
    torch.nn.init.zeros_(layer.bias)
    network = torch.nn.Sequential(norm, layer)
    order = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0, momentum=0.9, weight_decay=1e-3)
    seen = {}
    for epoch in range(100):
        for group in optimizer.param_groups:
            group["lr"] = 1.0 if epoch < 60 else 0.1 if epoch < 80 else 0.01
        batch = torch.randperm(len(train), generator=order)
        network.train()
        optimizer.zero_grad()
        F.cross_entropy(network(rows[train][batch]), labels[train][batch]).backward()
        optimizer.step()
        network.eval()
        with torch.no_grad():
            answers = network(rows[test]).softmax(1)
        if epoch % 5 == 0:
            seen[epoch] = 100 * float((answers.argmax(1) == labels[test]).double().mean())
    assert torch.allclose(found.probabilities, answers, atol=1e-5)
    assert found.best_on_test == max(seen.values())
    assert found.best_epoch == max(epoch for epoch, value in seen.items() if value == max(seen.values()))


def test_the_coclr_protocol_reports_last_and_best_by_name() -> None:
    features = synthetic_features(noise=2.0, protocol="coclr")
    result = evaluate_linear(features)
    assert result.protocol == "coclr" and result.penalty is None
    assert result.best_on_test is not None and result.best_epoch in range(0, 100, 5)
    assert evaluate_linear(features) == result


def test_batches_cover_everything_and_none_has_one_row() -> None:
    generator = torch.Generator().manual_seed(0)
    for num_rows, sizes in ((10, [10]), (1024, [1024]), (1025, [1025]), (2049, [1024, 1025]), (2050, [1024, 1024, 2])):
        batches = epoch_batches(num_rows, generator)
        assert [len(batch) for batch in batches] == sizes
        assert sorted(torch.cat(batches).tolist()) == list(range(num_rows))


def test_shared_sources_are_refused_here_too() -> None:
    features = synthetic_features()
    one = replace(features.videos, sources=("same",) * 48)
    with pytest.raises(ValueError, match="1 sources are in both"):
        evaluate_linear(replace(features, videos=one))
