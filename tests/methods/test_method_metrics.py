"""What methods show of a batch equals loops, draws nothing and changes nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from covid_cmsf.methods.base import Method
from covid_cmsf.methods.contrastive import CoCLR, InfoNCE
from covid_cmsf.methods.mean_shift import DIAGNOSTIC_K
from covid_cmsf.methods.memory_bank import MemoryBank
from covid_cmsf.methods.supervised import FrzProto, Xent
from tests.methods.factories import B, D, Scenario, ShiftSpec, make_scenario, nearest_indices
from tests.methods.test_methods import METHODS


def slow_purity(
    w: Scenario, chosen: Sequence[list[int]], *, bank: MemoryBank | None = None, own: Sequence[int]
) -> float:
    """Of all chosen rows but the own ones, how many have the true label."""
    bank = bank or w.bank
    right = total = 0
    for i, indices in enumerate(chosen):
        for j in indices:
            if j != own[i]:
                right += int(bank.ids("true_labels")[j] == w.batch.true_labels[i])
                total += 1
    return right / total


def allowed(method: ShiftSpec, w: Scenario, i: int) -> list[int]:
    own = own_indices(w)[i]
    indices = [j for j in range(len(w.bank)) if method.include_target or j != own]
    return [j for j in indices if method.include_siblings or j == own or w.bank.sources[j] != w.batch.sources[i]]


def own_indices(w: Scenario) -> list[int]:
    assert w.batch.bank_indices is not None
    return w.batch.bank_indices.main.tolist()


@pytest.mark.parametrize("name", METHODS)
def test_watching_draws_nothing_and_changes_nothing(name: str) -> None:
    w, method = make_scenario(hidden=0.4, labeled_size=15), METHODS[name]()
    before = {key: value.clone() for key, value in [*w.banks.state_dict().items(), *method.state_dict().items()]}
    dice = torch.get_rng_state()
    first, second = (method.compute_metrics(w.batch, w.banks) for _ in range(2))
    assert first == second and len(first) > 0
    assert torch.equal(dice, torch.get_rng_state())
    after = {**w.banks.state_dict(), **method.state_dict()}
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("k", [1, 4, "all"])
@pytest.mark.parametrize("siblings", [True, False])
def test_purity_with_and_without_a_guide_equals_loops(k: int, siblings: bool) -> None:
    method = ShiftSpec(k=k, constraint="guide", num_candidates=9, include_siblings=siblings)
    w = make_scenario()
    assert w.batch.target is not None and w.batch.guides is not None
    watched = DIAGNOSTIC_K if k in (1, "all") else k
    targets, guide, free, near, candidates, chosen = w.batch.target, w.batch.guides["guide_a"], [], [], [], []
    for i in range(B):
        indices = allowed(method, w, i)
        free.append(nearest_indices(targets[i], w.bank, "target", indices, watched))
        near.append(nearest_indices(targets[i], w.bank, "target", indices, 9))
        candidates.append(nearest_indices(guide[i], w.bank, "guide_a", indices, 9))
        chosen.append(nearest_indices(targets[i], w.bank, "target", candidates[i], watched))
    shared = sum(len(set(a) & set(b)) for a, b in zip(near, candidates, strict=True)) / sum(map(len, near))
    own = own_indices(w)
    slow = {"purity_free": slow_purity(w, free, own=own), "purity": slow_purity(w, chosen, own=own)}
    slow |= {"purity_candidates": slow_purity(w, candidates, own=own), "agreement": shared}
    assert method.build().compute_metrics(w.batch, w.banks) == pytest.approx(slow)


@pytest.mark.parametrize("k", [3, "all"])
@pytest.mark.parametrize("siblings", [True, False])
@pytest.mark.parametrize("constraint", ["label", "two_bank"])
def test_purity_of_noisy_labels_equals_loops(k: int, siblings: bool, constraint: str) -> None:
    w = make_scenario(hidden=0.3, labeled_size=15)
    generator = torch.Generator().manual_seed(5)
    for bank in (w.banks.main, w.banks.labeled):  # true labels that have nothing to do with those learned from
        assert bank is not None
        bank.true_labels[:] = torch.randint(4, (bank.size,), generator=generator)
    method = ShiftSpec(k=k, constraint=constraint, include_siblings=siblings).build()
    assert w.batch.target is not None and w.batch.bank_indices is not None and w.batch.bank_indices.labeled is not None
    bank, own = w.bank, own_indices(w)
    if constraint == "two_bank":
        assert w.banks.labeled is not None
        bank, own = w.banks.labeled, w.batch.bank_indices.labeled.tolist()
    chosen: list[list[int]] = []
    for i in range(B):
        indices = [j for j in range(len(bank)) if bank.ids("labels")[j] == w.batch.labels[i] >= 0]
        indices = [j for j in indices if siblings or j == own[i] or bank.ids("sources")[j] != w.batch.sources[i]]
        chosen.append(nearest_indices(w.batch.target[i], bank, "target", indices, k))
    metrics = method.compute_metrics(w.batch, w.banks)
    assert metrics["purity"] == pytest.approx(slow_purity(w, chosen, bank=bank, own=own)) and metrics["purity"] < 1
    assert "purity_free" in metrics


def test_without_labels_there_is_no_purity() -> None:
    w = make_scenario()
    w.batch = replace(w.batch, labels=torch.full((B,), -1), true_labels=torch.full((B,), -1))
    for method in (ShiftSpec(k=3).build(), InfoNCE(temperature=0.1), ShiftSpec(k=3, constraint="guide").build()):
        assert not {"purity", "purity_free", "purity_candidates"} & method.compute_metrics(w.batch, w.banks).keys()


def test_the_own_key_is_first_where_the_online_embedding_is_its_target() -> None:
    """A batch enters the bank of InfoNCE after its loss and before it is watched: it does not compete with itself."""
    for method in (InfoNCE(temperature=0.07), InfoNCE(temperature=0.07, batch_negatives=True)):
        for seed in range(20):
            w = make_scenario(seed)
            assert w.batch.target is not None
            w.batch = replace(w.batch, online=w.batch.target.clone())
            assert method.compute_metrics(w.batch, w.banks)["own_key_first"] == 1


def test_coclrs_facts_equal_loops() -> None:
    w = make_scenario()
    assert w.batch.target is not None and w.batch.guides is not None
    mined, near = [], []
    for i in range(B):
        others = [j for j in range(len(w.bank)) if w.bank.sources[j] != w.batch.sources[i]]
        mined.append(nearest_indices(w.batch.guides["guide_a"][i], w.bank, "guide_a", others, 4))
        near.append(nearest_indices(w.batch.target[i], w.bank, "target", others, 4))
    metrics = CoCLR(temperature=0.1, top_k=4).compute_metrics(w.batch, w.banks)
    assert metrics["purity"] == pytest.approx(slow_purity(w, mined, own=own_indices(w)))
    shared = sum(len(set(a) & set(b)) for a, b in zip(near, mined, strict=True)) / sum(map(len, near))
    assert metrics["agreement"] == pytest.approx(shared)


@pytest.mark.parametrize("method", [Xent(), FrzProto(num_classes=4, dim=D, seed=0)])
def test_accuracy_counts_known_labels(method: Method) -> None:
    w = make_scenario(hidden=0.4)
    scores = w.batch.online if isinstance(method, Xent) else w.batch.online @ method.prototypes.T  # type: ignore[operator]
    right = [int(scores[i].argmax() == label) for i, label in enumerate(w.batch.labels.tolist()) if label >= 0]
    assert method.compute_metrics(w.batch, None)["accuracy"] == pytest.approx(sum(right) / len(right))
    unknown = replace(w.batch, labels=torch.full((B,), -1))
    assert method.compute_metrics(unknown, None) == {}
