"""What methods show of a batch equals loops, draws nothing and changes nothing."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from covid_cmsf.methods.bank import Bank
from covid_cmsf.methods.contrastive import CoCLR, InfoNCE
from covid_cmsf.methods.method import Method
from covid_cmsf.methods.shift import WATCHED, MeanShift
from covid_cmsf.methods.supervised import FrzProto, Xent
from tests.methods.test_methods import METHODS
from tests.methods.worlds import B, D, World, nearest_rows, world


def slow_purity(w: World, chosen: Sequence[list[int]], *, bank: Bank | None = None, own: Sequence[int]) -> float:
    """Of all chosen rows but the own ones, how many have the true label."""
    bank = bank or w.bank
    right = total = 0
    for i, rows in enumerate(chosen):
        for j in rows:
            if j != own[i]:
                right += int(bank.who("true_labels")[j] == w.batch.true_labels[i])
                total += 1
    return right / total


def allowed(method: MeanShift, w: World, i: int) -> list[int]:
    own = own_rows(w)[i]
    rows = [j for j in range(len(w.bank)) if method.include_target or j != own]
    return [j for j in rows if method.include_siblings or j == own or w.bank.sources[j] != w.batch.sources[i]]


def own_rows(w: World) -> list[int]:
    assert w.batch.rows is not None
    return w.batch.rows.everyone.tolist()


@pytest.mark.parametrize("name", METHODS)
def test_watching_draws_nothing_and_changes_nothing(name: str) -> None:
    w, method = world(hidden=0.4, labeled_rows=15), METHODS[name]()
    before = {key: value.clone() for key, value in [*w.banks.state_dict().items(), *method.state_dict().items()]}
    dice = torch.get_rng_state()
    first, second = (method.watch(w.batch, w.banks) for _ in range(2))
    assert first == second and len(first) > 0
    assert torch.equal(dice, torch.get_rng_state())
    after = {**w.banks.state_dict(), **method.state_dict()}
    assert all(torch.equal(value, after[key]) for key, value in before.items())


@pytest.mark.parametrize("k", [1, 4, "all"])
@pytest.mark.parametrize("siblings", [True, False])
def test_purity_with_and_without_a_guide_equals_loops(k: int, siblings: bool) -> None:
    method = MeanShift(k=k, constraint="guide", num_candidates=9, include_siblings=siblings)
    w = world()
    assert w.batch.target is not None and w.batch.guides is not None
    watched = WATCHED if k in (1, "all") else k
    targets, guide, free, near, vouched, chosen = w.batch.target, w.batch.guides["guide_a"], [], [], [], []
    for i in range(B):
        rows = allowed(method, w, i)
        free.append(nearest_rows(targets[i], w.bank, "target", rows, watched))
        near.append(nearest_rows(targets[i], w.bank, "target", rows, 9))
        vouched.append(nearest_rows(guide[i], w.bank, "guide_a", rows, 9))
        chosen.append(nearest_rows(targets[i], w.bank, "target", vouched[i], watched))
    shared = sum(len(set(a) & set(b)) for a, b in zip(near, vouched, strict=True)) / sum(map(len, near))
    own = own_rows(w)
    slow = {"purity_free": slow_purity(w, free, own=own), "purity": slow_purity(w, chosen, own=own)}
    slow |= {"purity_candidates": slow_purity(w, vouched, own=own), "agreement": shared}
    assert method.watch(w.batch, w.banks) == pytest.approx(slow)


@pytest.mark.parametrize("k", [3, "all"])
@pytest.mark.parametrize("siblings", [True, False])
@pytest.mark.parametrize("constraint", ["label", "two_bank"])
def test_purity_of_noisy_labels_equals_loops(k: int, siblings: bool, constraint: str) -> None:
    w = world(hidden=0.3, labeled_rows=15)
    generator = torch.Generator().manual_seed(5)
    for bank in (w.banks.everyone, w.banks.labeled):  # true labels that have nothing to do with those learned from
        assert bank is not None
        bank.true_labels[:] = torch.randint(4, (bank.num_rows,), generator=generator)
    method = MeanShift(k=k, constraint=constraint, include_siblings=siblings)  # type: ignore[arg-type]
    assert w.batch.target is not None and w.batch.rows is not None and w.batch.rows.labeled is not None
    bank, own = w.bank, own_rows(w)
    if constraint == "two_bank":
        assert w.banks.labeled is not None
        bank, own = w.banks.labeled, w.batch.rows.labeled.tolist()
    chosen: list[list[int]] = []
    for i in range(B):
        rows = [j for j in range(len(bank)) if bank.who("labels")[j] == w.batch.labels[i] >= 0]
        rows = [j for j in rows if siblings or j == own[i] or bank.who("sources")[j] != w.batch.sources[i]]
        chosen.append(nearest_rows(w.batch.target[i], bank, "target", rows, k))
    facts = method.watch(w.batch, w.banks)
    assert facts["purity"] == pytest.approx(slow_purity(w, chosen, bank=bank, own=own)) and facts["purity"] < 1
    assert "purity_free" in facts


def test_without_labels_there_is_no_purity() -> None:
    w = world()
    w.batch = replace(w.batch, labels=torch.full((B,), -1), true_labels=torch.full((B,), -1))
    for method in (MeanShift(k=3), InfoNCE(temperature=0.1), MeanShift(k=3, constraint="guide")):
        assert not {"purity", "purity_free", "purity_candidates"} & method.watch(w.batch, w.banks).keys()


def test_the_own_key_is_first_where_the_online_embedding_is_its_target() -> None:
    """A batch enters the bank of InfoNCE after its loss and before it is watched: it does not compete with itself."""
    for method in (InfoNCE(temperature=0.07), InfoNCE(temperature=0.07, batch_negatives=True)):
        for seed in range(20):
            w = world(seed)
            assert w.batch.target is not None
            w.batch = replace(w.batch, online=w.batch.target.clone())
            assert method.watch(w.batch, w.banks)["own_key_first"] == 1


def test_coclrs_facts_equal_loops() -> None:
    w = world()
    assert w.batch.target is not None and w.batch.guides is not None
    mined, near = [], []
    for i in range(B):
        others = [j for j in range(len(w.bank)) if w.bank.sources[j] != w.batch.sources[i]]
        mined.append(nearest_rows(w.batch.guides["guide_a"][i], w.bank, "guide_a", others, 4))
        near.append(nearest_rows(w.batch.target[i], w.bank, "target", others, 4))
    facts = CoCLR(temperature=0.1, top_k=4).watch(w.batch, w.banks)
    assert facts["purity"] == pytest.approx(slow_purity(w, mined, own=own_rows(w)))
    shared = sum(len(set(a) & set(b)) for a, b in zip(near, mined, strict=True)) / sum(map(len, near))
    assert facts["agreement"] == pytest.approx(shared)


@pytest.mark.parametrize("method", [Xent(), FrzProto(num_classes=4, size=D, seed=0)])
def test_accuracy_counts_known_labels(method: Method) -> None:
    w = world(hidden=0.4)
    scores = w.batch.online if isinstance(method, Xent) else w.batch.online @ method.prototypes.T  # type: ignore[operator]
    right = [int(scores[i].argmax() == label) for i, label in enumerate(w.batch.labels.tolist()) if label >= 0]
    assert method.watch(w.batch, None)["accuracy"] == pytest.approx(sum(right) / len(right))
    unknown = replace(w.batch, labels=torch.full((B,), -1))
    assert method.watch(unknown, None) == {}
