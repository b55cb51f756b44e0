"""Every method, given a batch and the banks, equals a naive double loop; and the paper's identities hold."""

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError

from covid_cmsf.methods.base import Method, PerSampleLoss
from covid_cmsf.methods.contrastive import CoCLR, InfoNCE, SupConConfig, SupervisedContrastive
from covid_cmsf.methods.supervised import FrzProto, ProtoNW, Xent
from tests.methods.factories import B, D, Scenario, ShiftSpec, make_scenario, nearest_indices, with_gradients

T = 0.2


def losses(method: Method, w: Scenario, *, seed: int = 0) -> PerSampleLoss:
    return method.losses(w.batch, w.banks, torch.Generator().manual_seed(seed))


def check(found: PerSampleLoss, slow: list[float | None]) -> None:
    """`None` is an example that has nothing to learn from."""
    assert found.valid.tolist() == [value is not None for value in slow]
    assert found.values.tolist() == pytest.approx([value or 0.0 for value in slow], abs=1e-5)


def slow_shift(method: ShiftSpec, w: Scenario) -> list[float | None]:
    batch, values = w.batch, []
    assert batch.target is not None and batch.guides is not None and batch.bank_indices is not None
    for i in range(B):
        bank, own, label = w.bank, int(batch.bank_indices.main[i]), int(batch.labels[i])
        constraint = method.constraint
        if constraint == "two_bank" and label >= 0:
            assert w.banks.labeled is not None and batch.bank_indices.labeled is not None
            bank, own = w.banks.labeled, int(batch.bank_indices.labeled[i])
        rows = []
        for j in range(len(bank)):
            sibling = bank.ids("sources")[j] == batch.sources[i] and j != own
            if (j == own and not method.include_target) or (sibling and not method.include_siblings):
                continue
            rows.append(j)
        if constraint == "self":
            rows = [own]
        if constraint == "label" or (constraint == "two_bank" and label >= 0):
            rows = [j for j in rows if label >= 0 and bank.ids("labels")[j] == label]
        if constraint == "guide":
            sets = [
                set(nearest_indices(one[i], bank, name, rows, method.num_candidates))
                for name, one in batch.guides.items()
            ]
            rows = sorted(set.union(*sets) if method.combine == "union" else set.intersection(*sets))
        rows = nearest_indices(batch.target[i], bank, "target", rows, method.k)
        v = batch.online[i].double()
        values.append(
            sum(2 - 2 * float(v @ bank.embeddings("target")[j].double()) for j in rows) / len(rows) if rows else None
        )
    return values


SHIFTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "none": ({"constraint": "none"}, {}),
    "self": ({"constraint": "self"}, {}),
    "label": ({"constraint": "label"}, {"hidden": 0.3}),
    "many_labels": ({"constraint": "label"}, {"num_labels": 15}),
    "two_bank": ({"constraint": "two_bank"}, {"hidden": 0.5, "labeled_size": 15}),
    "two_bank_all_labeled": ({"constraint": "two_bank"}, {"labeled_size": 15}),
    "two_bank_none_labeled": ({"constraint": "two_bank"}, {"hidden": 1.0, "labeled_size": 15}),
    "guide": ({"constraint": "guide", "num_candidates": 7}, {}),
    "union": ({"constraint": "guide", "num_candidates": 5, "combine": "union"}, {"guides": ("guide_a", "guide_b")}),
    "intersection": (
        {"constraint": "guide", "num_candidates": 12, "combine": "intersection"},
        {"guides": ("guide_a", "guide_b")},
    ),
}


@pytest.mark.parametrize("name", SHIFTS)
def test_mean_shift_equals_a_double_loop(name: str) -> None:
    options, scenario = SHIFTS[name]
    for k, target, siblings, pushed in itertools.product([1, 3, 100, "all"], [True, False], [True, False], [9, 55]):
        w = make_scenario(pushed=pushed, seed=pushed, **scenario)
        method = ShiftSpec(k=k, include_target=target, include_siblings=siblings, **options)  # type: ignore[arg-type]
        check(losses(method.build(), w), slow_shift(method, w))


def test_labeled_and_unlabeled_rows_stay_apart() -> None:
    w = make_scenario(hidden=0.5, labeled_size=15)
    before = losses(ShiftSpec(k=3, constraint="two_bank").build(), w).values
    known = w.batch.labels >= 0
    assert 0 < int(known.sum()) < B
    w.banks.main.get_buffer("column_target").mul_(-1)
    changed = losses(ShiftSpec(k=3, constraint="two_bank").build(), w).values != before
    assert torch.equal(changed, ~known)


def slow_softmax(w: Scenario, i: int, left_out: list[int]) -> dict[int, float]:
    """Probability of the own key (-1) and of each row of the bank that is not left out."""
    assert w.batch.target is not None
    v = w.batch.online[i].double()
    raw = {-1: math.exp(float(v @ w.batch.target[i].double()) / T)}
    for j, z in enumerate(w.bank.embeddings("target").double()):
        if j not in left_out:
            raw[j] = math.exp(float(v @ z) / T)
    return {j: value / sum(raw.values()) for j, value in raw.items()}


@pytest.mark.parametrize("exclude_negatives", ["none", "video", "source"])
@pytest.mark.parametrize("batch_negatives", [False, True])
def test_infonce_equals_a_double_loop(exclude_negatives: Any, batch_negatives: bool) -> None:
    for pushed in (B, 9, 55):
        w = make_scenario(pushed=pushed, after=not batch_negatives)
        slow: list[float | None] = []
        for i in range(B):
            out = []
            for j in range(len(w.bank)):
                same = {"none": False, "video": w.bank.ids("videos")[j] == w.batch.videos[i]}
                same["source"] = w.bank.ids("sources")[j] == w.batch.sources[i]
                own = batch_negatives and w.batch.bank_indices is not None and w.batch.bank_indices.main[i] == j
                if same[exclude_negatives] or own:
                    out.append(j)
            slow.append(-math.log(slow_softmax(w, i, out)[-1]))
        method = InfoNCE(temperature=T, exclude_negatives=exclude_negatives, batch_negatives=batch_negatives)
        assert method.push == ("before" if batch_negatives else "after")
        check(losses(method, w), slow)


@pytest.mark.parametrize(("include_target", "own_key_negative"), [(True, False), (False, False), (False, True)])
def test_ubernce_and_supcon_equal_a_double_loop(include_target: bool, own_key_negative: bool) -> None:
    w = make_scenario(hidden=0.3, num_labels=12, after=True)
    slow: list[float | None] = []
    for i in range(B):
        label, p = int(w.batch.labels[i]), slow_softmax(w, i, [])
        positives = [-1] * include_target + [j for j in range(len(w.bank)) if label >= 0 and w.bank.labels[j] == label]
        # Khosla et al.: the denominator has no entry of the sample's own class that is not a positive.
        kept = sum(p.values()) - (0 if include_target or own_key_negative else p[-1])
        slow.append(sum(-math.log(p[j] / kept) for j in positives) / len(positives) if positives else None)
    assert include_target or None in slow
    options = {"include_target": include_target, "own_key_negative": own_key_negative}
    check(losses(SupervisedContrastive(temperature=T, **options), w), slow)


def test_supcons_own_key_is_no_negative_unless_asked_for() -> None:
    options = {"name": "supcon", "include_target": False}
    config = SupConConfig.model_validate(options)
    assert not config.own_key_negative
    w = make_scenario(after=True)
    method, other = (
        one.build(num_classes=4, embedding_dim=D)
        for one in (config, SupConConfig.model_validate({**options, "own_key_negative": True}))
    )
    assert (losses(method, w).values < losses(other, w).values).all()
    with pytest.raises(ValidationError, match="own_key_negative has no effect with include_target"):
        SupConConfig.model_validate({"name": "supcon", "own_key_negative": True})


def test_supcon_without_the_own_key_and_an_empty_bank_learns_nothing_and_stays_finite() -> None:
    w = make_scenario(pushed=B, after=True)
    assert len(w.bank) == 0
    w.batch = with_gradients(w.batch)
    found = losses(SupervisedContrastive(temperature=T, include_target=False), w)
    found.values.sum().backward()
    assert not found.valid.any() and w.batch.online.grad is not None and not w.batch.online.grad.any()


@pytest.mark.parametrize("drop_self", [0.0, 1.0])
@pytest.mark.parametrize("pushed", [30, 55])  # the bank of 40 is not full, or full
def test_coclr_equals_a_double_loop(drop_self: float, pushed: int) -> None:
    w = make_scenario(pushed=pushed, after=True)
    assert w.batch.guides is not None
    slow: list[float | None] = []
    for i in range(B):
        siblings = [j for j in range(len(w.bank)) if w.bank.sources[j] == w.batch.sources[i]]
        others = [j for j in range(len(w.bank)) if j not in siblings]
        full = len(w.bank) == w.bank.size
        mined = nearest_indices(w.batch.guides["guide_a"][i], w.bank, "guide_a", others, 3) if full else []
        positives = siblings + mined
        if not drop_self or not positives:
            positives = [-1, *positives]
        p = slow_softmax(w, i, [])
        slow.append(-math.log(sum(p[j] for j in positives)))
    check(losses(CoCLR(temperature=T, top_k=3, drop_self=drop_self), w), slow)


def test_protonw_equals_a_double_loop_and_leaves_missing_classes_out() -> None:
    w = make_scenario(1, pushed=16, num_labels=9, hidden=0.3, after=True)
    means = {}
    for label in range(9):
        rows = [
            z for z, one in zip(w.bank.embeddings("target").double(), w.bank.ids("labels"), strict=True) if one == label
        ]
        if rows:
            means[label] = F.normalize(sum(rows, torch.zeros(D)), dim=0)
    slow: list[float | None] = []
    for i in range(B):
        raw = {c: math.exp(float(w.batch.online[i].double() @ mean) / T) for c, mean in means.items()}
        label = int(w.batch.labels[i])
        slow.append(-math.log(raw[label] / sum(raw.values())) if label in raw else None)
    assert len(means) < 9 and None in slow and any(value is not None for value in slow)
    check(losses(ProtoNW(num_classes=9, temperature=T), w), slow)


def test_frozen_prototypes_and_cross_entropy_equal_loops() -> None:
    w = make_scenario(hidden=0.4)
    method = FrzProto(num_classes=4, dim=D, seed=3)
    labels, frozen, entropy = w.batch.labels.tolist(), [], []
    assert -1 in labels
    for v, label in zip(w.batch.online.double(), labels, strict=True):
        frozen.append(None if label < 0 else 2 - 2 * float(v @ method.prototypes[label].double()))
        entropy.append(None if label < 0 else -math.log(math.exp(float(v[label])) / sum(map(math.exp, v.tolist()))))
    check(method.losses(w.batch, None, torch.Generator()), frozen)
    check(Xent().losses(w.batch, None, torch.Generator()), entropy)
    assert "prototypes" in method.state_dict()


def test_the_papers_identities_hold() -> None:
    w, one_label = make_scenario(), make_scenario(num_labels=1)
    msf = losses(ShiftSpec(k=5).build(), w).values
    assert w.batch.target is not None
    byol = 2 - 2 * (w.batch.online * w.batch.target).sum(1)
    top_all = losses(ShiftSpec(k="all", constraint="label").build(), w).values
    labels, rows = w.bank.ids("labels"), w.bank.embeddings("target")
    class_means = torch.stack([rows[labels == label].mean(0) for label in w.batch.labels])
    all_allowed = ShiftSpec(k=5, constraint="guide", num_candidates=w.bank.size).build()
    for found, expected in (
        (losses(ShiftSpec(k=1).build(), w).values, byol),
        (losses(ShiftSpec(k=1, constraint="self").build(), w).values, byol),
        (losses(ShiftSpec(k=1, constraint="guide").build(), w).values, byol),
        (losses(ShiftSpec(k=1, constraint="label").build(), w).values, byol),
        (losses(all_allowed, w).values, msf),
        (
            losses(ShiftSpec(k=5, constraint="label").build(), one_label).values,
            losses(ShiftSpec(k=5).build(), one_label).values,
        ),
        (top_all, 2 - 2 * (w.batch.online * class_means).sum(1)),
    ):
        assert torch.allclose(found, expected, atol=1e-5)


def test_ubernce_with_labels_that_nobody_shares_is_infonce() -> None:
    w = make_scenario(after=True)
    strange = Scenario(w.banks, replace(w.batch, labels=torch.arange(100, 100 + B)))
    infonce = losses(InfoNCE(temperature=T), w).values
    assert torch.allclose(losses(SupervisedContrastive(temperature=T), strange).values, infonce)


METHODS: dict[str, Callable[[], Method]] = {
    "msf": lambda: ShiftSpec(k=3).build(),
    "msf_all": lambda: ShiftSpec(k="all").build(),
    "byol": lambda: ShiftSpec(k=1, constraint="self").build(),
    "label": lambda: ShiftSpec(k=3, constraint="label").build(),
    "label_all": lambda: ShiftSpec(k="all", constraint="label", include_siblings=False).build(),
    "two_bank": lambda: ShiftSpec(k=3, constraint="two_bank").build(),
    "guide": lambda: ShiftSpec(k=3, constraint="guide").build(),
    "infonce": lambda: InfoNCE(temperature=T, batch_negatives=True),
    "supcon": lambda: SupervisedContrastive(temperature=T, include_target=False),
    "coclr": lambda: CoCLR(temperature=T, top_k=3, drop_self=0.5),
    "protonw": lambda: ProtoNW(num_classes=4, temperature=T),
    "frzproto": lambda: FrzProto(num_classes=4, dim=D, seed=0),
    "xent": Xent,
}


@pytest.mark.parametrize("name", METHODS)
def test_gradients_flow_only_into_the_online_embeddings_of_examples_that_count(name: str) -> None:
    method = METHODS[name]()
    w = make_scenario(hidden=0.4, labeled_size=15, after=method.push == "after")
    w.batch = with_gradients(w.batch)
    found = losses(method, w)
    found.values.sum().backward()
    assert w.batch.online.grad is not None and w.batch.target is not None and w.batch.guides is not None
    assert w.batch.target.grad is None and all(rows.grad is None for rows in w.batch.guides.values())
    assert torch.equal(w.batch.online.grad.abs().sum(1) > 0, found.valid)
    assert bool(w.batch.online.grad.isfinite().all())


@pytest.mark.parametrize("name", METHODS)
def test_two_processes_with_half_a_batch_each_make_the_mean_of_all(name: str) -> None:
    method = METHODS[name]()
    w = make_scenario(hidden=0.4, labeled_size=15, after=method.push == "after")
    whole = losses(method, w)
    halves = [losses(method, Scenario(w.banks, w.batch.select(part))) for part in (slice(0, 2), slice(2, B))]
    total = sum(half.values.sum() for half in halves) / max(1, sum(int(half.valid.sum()) for half in halves))
    assert torch.allclose(torch.as_tensor(total), whole.mean(), atol=1e-6)
    assert torch.allclose(torch.cat([half.values for half in halves]), whole.values, atol=1e-5)


def test_two_queues_average_the_guided_and_the_free_loss() -> None:
    w = make_scenario(3)
    guided, free = ShiftSpec(k=3, constraint="guide", num_candidates=5), ShiftSpec(k=3)
    method = guided.build(half_unconstrained=True, memory_kind="embeddings")
    slow = [(a + b) / 2 for a, b in zip(slow_shift(guided, w), slow_shift(free, w), strict=True)]  # type: ignore[operator]
    check(losses(method, w), slow)
    assert method.memory_kind == "embeddings" and not method.uses_labels and not method.uses_guides


def test_clusters_average_the_constrained_and_the_free_loss() -> None:
    w = make_scenario(4, hidden=0.3)
    method = ShiftSpec(k=3, constraint="label").build(half_unconstrained=True, memory_kind="clusters")
    bound, free = slow_shift(ShiftSpec(k=3, constraint="label"), w), slow_shift(ShiftSpec(k=3), w)
    assert None in bound  # without a cluster only the free half is left
    slow = [b if a is None else (a + b) / 2 for a, b in zip(bound, free, strict=True)]  # type: ignore[operator]
    check(losses(method, w), slow)
    assert method.memory_kind == "clusters" and not method.uses_labels
