"""Neighbors, constraints and the mean-shift loss equal naive double loops; the paper's identities hold."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.methods import neighbors as neighbors_module
from covid_cmsf.methods.constraints import Exclusions, guided, only_self, same_label, unconstrained
from covid_cmsf.methods.mean_shift import class_mean_loss, mean_shift_loss
from covid_cmsf.methods.memory_bank import MemoryBank
from covid_cmsf.methods.neighbors import Neighbors, nearest, nearest_among, nearest_same_label

B, M, D = 6, 40, 8


def unit(*shape: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


class Scenario:
    """A filled bank whose last rows are this batch's targets."""

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
        self.exclusions = Exclusions(own, sources[-B:], target=target_excluded, siblings=siblings_excluded)

    def allowed(self, i: int, j: int) -> bool:
        own = int(self.exclusions.own_indices[i]) == j
        sibling = int(self.bank.ids("sources")[j]) == int(self.sources[i]) and not own
        return not (own and self.exclusions.target) and not (sibling and self.exclusions.siblings)

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


def found(neighbors: Neighbors) -> list[list[int]]:
    return [[j for j in indices if j >= 0] for indices in neighbors.indices.tolist()]


SCENARIOS = [
    {"target_excluded": t, "siblings_excluded": s, "pushed": p, "num_labels": n}
    for t, s, p, n in itertools.product([False, True], [False, True], [20, 55], [4, 15])
]


@pytest.mark.parametrize("scenario", SCENARIOS, ids=str)
@pytest.mark.parametrize("k", [1, 5, 100])
def test_all_constraints_equal_naive_loops(scenario: dict, k: int) -> None:
    w = Scenario(**scenario)
    indices = range(len(w.bank))
    all_allowed = [[j for j in indices if w.allowed(i, j)] for i in range(B)]
    labeled = [[j for j in all_allowed[i] if w.bank.ids("labels")[j] == w.labels[i]] for i in range(B)]
    vouched = [w.slow_nearest(w.guide[i], "guide", 7, all_allowed[i]) for i in range(B)]
    cases = {
        "none": (unconstrained(w.targets, w.bank, k, w.exclusions), all_allowed),
        "label": (same_label(w.targets, w.bank, k, w.exclusions, labels=w.labels), labeled),
        "guide": (
            guided(w.targets, w.bank, k, w.exclusions, guides=[("guide", w.guide)], num_candidates=7)[0],
            vouched,
        ),
    }
    for name, (fast, allowed) in cases.items():
        slow = [w.slow_nearest(w.targets[i], "target", k, allowed[i]) for i in range(B)]
        assert found(fast) == slow, name
        loss = mean_shift_loss(w.online, w.bank.embeddings("target"), fast)
        assert float(loss.mean()) == pytest.approx(w.slow_loss(slow), abs=1e-5), name


@pytest.mark.parametrize("combine", ["union", "intersection"])
def test_candidates_of_two_guides_are_joined(combine: str) -> None:
    w = Scenario()
    guides = [("guide", w.guide), ("other", w.other)]
    fast, candidates = guided(w.targets, w.bank, 5, w.exclusions, guides=guides, num_candidates=12, combine=combine)  # type: ignore[arg-type]
    for i in range(B):
        first, second = (set(w.slow_nearest(e[i], c, 12, list(range(M)))) for c, e in guides)
        expected = first | second if combine == "union" else first & second
        given = [j for j in candidates[i].tolist() if j >= 0]
        assert sorted(given) == sorted(expected)
        assert found(fast)[i] == w.slow_nearest(w.targets[i], "target", 5, sorted(expected))


def test_k_1_is_byol() -> None:
    w = Scenario()
    byol = (2 - 2 * (w.online * w.targets).sum(1)).mean()
    bank = w.bank.embeddings("target")
    for neighbors in (unconstrained(w.targets, w.bank, 1, w.exclusions), only_self(w.exclusions)):
        assert torch.allclose(mean_shift_loss(w.online, bank, neighbors).mean(), byol, atol=1e-5)


def test_n_of_bank_size_and_a_single_label_are_msf() -> None:
    w = Scenario()
    msf = unconstrained(w.targets, w.bank, 5, w.exclusions)
    wide = guided(w.targets, w.bank, 5, w.exclusions, guides=[("guide", w.guide)], num_candidates=M)[0]
    assert torch.equal(wide.indices, msf.indices)
    one = Scenario(num_labels=1)
    labeled = same_label(one.targets, one.bank, 5, one.exclusions, labels=one.labels)
    assert torch.equal(labeled.indices, unconstrained(one.targets, one.bank, 5, one.exclusions).indices)


def test_n_equal_to_k_uses_exactly_the_guides_rows() -> None:
    w = Scenario()
    chosen, candidates = guided(w.targets, w.bank, 5, w.exclusions, guides=[("guide", w.guide)], num_candidates=5)
    assert torch.equal(chosen.indices.sort(1).values, candidates.sort(1).values)


def test_top_all_is_the_class_mean() -> None:
    w = Scenario()
    bank, labels = w.bank.embeddings("target"), w.bank.ids("labels")
    all_allowed = same_label(w.targets, w.bank, M, w.exclusions, labels=w.labels)
    fast = class_mean_loss(w.online, bank, labels=w.labels, bank_labels=labels)
    assert torch.allclose(fast.mean(), mean_shift_loss(w.online, bank, all_allowed).mean(), atol=1e-5)
    unknown = torch.full_like(w.labels, -1)
    assert float(class_mean_loss(w.online, bank, labels=unknown, bank_labels=labels).mean()) == 0


def test_an_example_without_neighbors_does_not_count() -> None:
    w = Scenario()
    some = Neighbors(torch.tensor([[3, 4]] * (B - 1) + [[-1, -1]]))
    alone = mean_shift_loss(w.online[:-1], w.bank.embeddings("target"), Neighbors(some.indices[:-1])).mean()
    assert torch.allclose(mean_shift_loss(w.online, w.bank.embeddings("target"), some).mean(), alone)
    none = Neighbors(torch.full((B, 2), -1))
    assert float(mean_shift_loss(w.online, w.bank.embeddings("target"), none).mean()) == 0


def test_gradients_flow_only_through_the_online_embedding() -> None:
    w = Scenario()
    online = w.online.clone().requires_grad_()
    targets = w.targets.clone().requires_grad_()
    loss = mean_shift_loss(online, w.bank.embeddings("target"), unconstrained(targets, w.bank, 5, w.exclusions)).mean()
    loss.backward()
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
