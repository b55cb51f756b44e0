"""Neighbors, constraints and the mean-shift loss equal naive double loops; the paper's identities hold."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.methods import neighbors as neighbors_module
from covid_cmsf.methods.base import PerSampleLoss
from covid_cmsf.methods.constraints import GuideConstraint, LabelConstraint, Query, SelfConstraint, Unconstrained
from covid_cmsf.methods.mean_shift import MeanShiftLoss, mean_shift_loss
from covid_cmsf.methods.memory_bank import MemoryBank
from covid_cmsf.methods.neighbors import Neighbors, nearest, nearest_among, nearest_same_label, neighbor_mean

B, M, D = 6, 40, 8


def unit(*shape: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


class Scenario:
    """A filled bank whose last entries are this batch's targets."""

    def __init__(
        self, *, num_labels: int = 4, pushed: int = 55, target_excluded: bool = False, siblings_excluded: bool = False
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        self.bank = MemoryBank(M, {"target": D, "guide": D, "other": D})
        videos = torch.arange(pushed)
        labels = torch.randint(num_labels, (pushed,), generator=generator)
        sources = torch.randint(12, (pushed,), generator=generator)
        columns = {name: unit(pushed, D, seed=seed) for seed, name in enumerate(self.bank.columns)}
        self.bank.push_(
            {n: c[:-B] for n, c in columns.items()}, videos=videos[:-B], sources=sources[:-B], labels=labels[:-B]
        )
        own = self.bank.push_(
            {n: c[-B:] for n, c in columns.items()}, videos=videos[-B:], sources=sources[-B:], labels=labels[-B:]
        )
        self.targets, self.guide, self.other = (columns[name][-B:] for name in self.bank.columns)
        self.labels, self.sources, self.online = labels[-B:], sources[-B:], unit(B, D, seed=9)
        self.query = Query(
            self.targets,
            own,
            self.sources,
            self.labels,
            {"guide": self.guide, "other": self.other},
            include_target=not target_excluded,
            include_siblings=not siblings_excluded,
        )

    def allowed(self, i: int, j: int) -> bool:
        own = int(self.query.indices[i]) == j
        sibling = int(self.bank.ids("sources")[j]) == int(self.sources[i]) and not own
        return (self.query.include_target or not own) and (self.query.include_siblings or not sibling)

    def slow_nearest(self, query: torch.Tensor, column: str, k: int, indices: list[int]) -> list[int]:
        bank = self.bank.embeddings(column)
        return sorted(indices, key=lambda j: -float(sum(query[d] * bank[j, d] for d in range(D))))[:k]

    def slow_loss(self, chosen: list[list[int]]) -> float:
        bank, total, count = self.bank.embeddings("target"), 0.0, 0
        for v, indices in zip(self.online, chosen, strict=True):
            if indices:
                total += sum(2 - 2 * float((v * bank[j]).sum()) for j in indices) / len(indices)
                count += 1
        return total / max(count, 1)


def loss_of(w: Scenario, neighbors: Neighbors) -> PerSampleLoss:
    return mean_shift_loss(w.online, *neighbor_mean(w.bank.targets, neighbors))


def found(neighbors: Neighbors) -> list[list[int]]:
    return [[j for j in indices if j >= 0] for indices in neighbors.indices.tolist()]


SCENARIOS: list[dict[str, Any]] = [
    {"target_excluded": t, "siblings_excluded": s, "pushed": p, "num_labels": n}
    for t, s, p, n in itertools.product([False, True], [False, True], [20, 55], [4, 15])
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.parametrize("k", [1, 5, 100])
def test_all_constraints_equal_naive_loops(scenario: dict[str, Any], k: int) -> None:
    w = Scenario(**scenario)
    indices = range(len(w.bank))
    all_allowed = [[j for j in indices if w.allowed(i, j)] for i in range(B)]
    labeled = [[j for j in all_allowed[i] if w.bank.ids("labels")[j] == w.labels[i]] for i in range(B)]
    proposed = [w.slow_nearest(w.guide[i], "guide", 7, all_allowed[i]) for i in range(B)]
    cases = {
        "none": (Unconstrained().nearest(w.query, w.bank, k), all_allowed),
        "label": (LabelConstraint().nearest(w.query, w.bank, k), labeled),
        "guide": (
            GuideConstraint("guide", n=7).nearest(w.query, w.bank, k),
            proposed,
        ),
    }
    for name, (fast, allowed) in cases.items():
        slow = [w.slow_nearest(w.targets[i], "target", k, allowed[i]) for i in range(B)]
        assert found(fast) == slow, name
        loss = loss_of(w, fast)
        assert float(loss.mean()) == pytest.approx(w.slow_loss(slow), abs=1e-5), name


@pytest.mark.parametrize("combine", ["union", "intersection"])
def test_candidates_of_two_guides_are_combined(combine: str) -> None:
    w = Scenario()
    guides = [("guide", w.guide), ("other", w.other)]
    constraint = GuideConstraint(["guide", "other"], n=12, combine=combine)  # type: ignore[arg-type]
    candidates, fast = constraint.candidates(w.query, w.bank).indices, constraint.nearest(w.query, w.bank, 5)
    for i in range(B):
        first, second = (set(w.slow_nearest(e[i], c, 12, list(range(M)))) for c, e in guides)
        expected = first | second if combine == "union" else first & second
        given = [j for j in candidates[i].tolist() if j >= 0]
        assert sorted(given) == sorted(expected)
        assert found(fast)[i] == w.slow_nearest(w.targets[i], "target", 5, sorted(expected))


def test_gradients_are_those_of_finite_differences() -> None:
    w = Scenario()
    means, counts = neighbor_mean(w.bank.targets, GuideConstraint("guide", n=7).nearest(w.query, w.bank, 3))
    online = w.online.double().requires_grad_()
    # Computed in float32: steps that are large against its rounding.
    assert torch.autograd.gradcheck(lambda v: mean_shift_loss(v, means, counts).mean(), online, eps=5e-3, atol=1e-3)


def test_k_1_is_byol() -> None:
    w = Scenario()
    byol = (2 - 2 * (w.online * w.targets).sum(1)).mean()
    for neighbors in (Unconstrained().nearest(w.query, w.bank, 1), SelfConstraint().nearest(w.query, w.bank, 1)):
        assert torch.allclose(loss_of(w, neighbors).mean(), byol, atol=1e-5)


def test_n_of_bank_size_and_a_single_label_are_msf() -> None:
    w = Scenario()
    msf = Unconstrained().nearest(w.query, w.bank, 5)
    wide = GuideConstraint("guide", n=M).nearest(w.query, w.bank, 5)
    assert torch.equal(wide.indices, msf.indices)
    one = Scenario(num_labels=1)
    labeled = LabelConstraint().nearest(one.query, one.bank, 5)
    assert torch.equal(labeled.indices, Unconstrained().nearest(one.query, one.bank, 5).indices)


def test_n_equal_to_k_uses_exactly_the_guides_candidates() -> None:
    w = Scenario()
    constraint = GuideConstraint("guide", n=5)
    chosen, candidates = constraint.nearest(w.query, w.bank, 5), constraint.candidates(w.query, w.bank).indices
    assert torch.equal(chosen.indices.sort(1).values, candidates.sort(1).values)


def test_top_all_is_the_class_mean() -> None:
    w = Scenario()
    constraint = LabelConstraint()
    every = loss_of(w, constraint.nearest(w.query, w.bank, M))
    fast = mean_shift_loss(w.online, *constraint.mean(w.query, w.bank, "all"))
    assert torch.allclose(fast.mean(), every.mean(), atol=1e-5)
    unknown = replace(w.query, labels=torch.full_like(w.labels, -1))
    assert float(mean_shift_loss(w.online, *constraint.mean(unknown, w.bank, "all")).mean()) == 0


def test_the_loss_looks_up_in_the_bank_what_was_pushed() -> None:
    """`MeanShiftLoss` in anyone's own loop: online embeddings, the bank, and the indices that `push_` returned."""
    for scenario in SCENARIOS:
        w = Scenario(**scenario)
        criterion = MeanShiftLoss(
            5,
            GuideConstraint("guide", n=7),
            include_target=w.query.include_target,
            include_siblings=w.query.include_siblings,
        )
        assert torch.equal(
            criterion(w.online, w.bank, w.query.indices), criterion.per_sample(w.online, w.bank, w.query).mean()
        )


def test_k_and_n_below_1_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 neighbor"):
        MeanShiftLoss(0)
    with pytest.raises(ValueError, match="at least 1 candidate"):
        GuideConstraint(n=0)


def test_a_sample_without_neighbors_does_not_count() -> None:
    w = Scenario()
    some = Neighbors(torch.tensor([[3, 4]] * (B - 1) + [[-1, -1]]))
    alone = mean_shift_loss(w.online[:-1], *neighbor_mean(w.bank.targets, Neighbors(some.indices[:-1]))).mean()
    assert torch.allclose(loss_of(w, some).mean(), alone)
    none = Neighbors(torch.full((B, 2), -1))
    assert float(loss_of(w, none).mean()) == 0


def test_gradients_flow_only_through_the_online_embedding() -> None:
    w = Scenario()
    online = w.online.clone().requires_grad_()
    targets = w.targets.clone().requires_grad_()
    found = Unconstrained().nearest(replace(w.query, target=targets), w.bank, 5)
    mean_shift_loss(online, *neighbor_mean(w.bank.targets, found)).mean().backward()
    assert online.grad is not None and online.grad.abs().sum() > 0 and targets.grad is None


@pytest.mark.parametrize("slice_bytes", [1, 1000])
def test_results_do_not_depend_on_the_slices(monkeypatch: pytest.MonkeyPatch, slice_bytes: int) -> None:
    w = Scenario()
    candidates = torch.randint(-1, len(w.bank), (B, 9), generator=torch.Generator().manual_seed(3))
    whole = (
        nearest(w.targets, w.bank.embeddings("target"), 5),
        nearest_among(w.targets, w.bank.embeddings("target"), 5, candidates),
    )
    monkeypatch.setattr(neighbors_module, "SLICE_BYTES", slice_bytes)
    sliced = (
        nearest(w.targets, w.bank.embeddings("target"), 5),
        nearest_among(w.targets, w.bank.embeddings("target"), 5, candidates),
    )
    assert all(torch.equal(a.indices, b.indices) for a, b in zip(whole, sliced, strict=True))


def test_unknown_labels_match_nothing() -> None:
    bank_labels = torch.tensor([-1, 2, 0, 2, -1])
    queries, bank = unit(3, D, seed=0), unit(5, D, seed=1)
    indices = nearest_same_label(queries, bank, 3, labels=torch.tensor([2, -1, 7]), bank_labels=bank_labels).indices
    indices = indices.sort(1).values
    assert [[j for j in row if j >= 0] for row in indices.tolist()] == [[1, 3], [], []]
