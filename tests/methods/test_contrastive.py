"""Contrastive and prototype losses, and diagnostics, equal naive loops."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.methods.base import PerSampleLoss
from covid_cmsf.methods.contrastive import (
    contrastive_logits,
    drop_own_key,
    label_positives,
    log_sum_loss,
    mean_log_loss,
    mined_positives,
    own_key_positives,
)
from covid_cmsf.methods.diagnostics import embedding_std, overlap, purity
from covid_cmsf.methods.memory_bank import MemoryBank
from covid_cmsf.methods.neighbors import Neighbors
from covid_cmsf.methods.supervised import bank_prototypes, frozen_prototype_loss, frozen_prototypes, prototype_loss
from covid_cmsf.models.effective_rank import effective_rank

B, M, D, T = 5, 12, 6, 0.07


def unit(*shape: int, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)), dim=-1)


@pytest.fixture
def bank() -> MemoryBank:
    bank = MemoryBank(M, {"target": D, "guide": D})
    numbers = torch.arange(M)
    columns = {"target": unit(M, D, seed=0), "guide": unit(M, D, seed=1)}
    bank.push_(columns, videos=numbers, sources=numbers // 2, labels=numbers % 4)
    return bank


@pytest.fixture
def logits(bank: MemoryBank) -> torch.Tensor:
    return contrastive_logits(unit(B, D, seed=2), unit(B, D, seed=3), bank.embeddings("target"), temperature=T)


def probabilities(bank: MemoryBank, i: int) -> list[float]:
    v, k = unit(B, D, seed=2)[i].double(), unit(B, D, seed=3)[i].double()
    raw = [math.exp(float(v @ z) / T) for z in (k, *bank.embeddings("target").double())]
    return [value / sum(raw) for value in raw]


LABELS = torch.tensor([0, 1, 3, 2, -1])


def test_infonce_equals_a_loop_and_cross_entropy(bank: MemoryBank, logits: torch.Tensor) -> None:
    slow = sum(-math.log(probabilities(bank, i)[0]) for i in range(B)) / B
    positives = own_key_positives(B, M, device=logits.device)
    assert float(mean_log_loss(logits, positives).mean()) == pytest.approx(slow, rel=1e-5)
    assert float(log_sum_loss(logits, positives).mean()) == pytest.approx(slow, rel=1e-5)
    assert float(F.cross_entropy(logits, torch.zeros(B, dtype=torch.int64))) == pytest.approx(slow, rel=1e-5)


@pytest.mark.parametrize("loss", [mean_log_loss, log_sum_loss])
def test_gradients_are_those_of_finite_differences(loss: Callable[..., PerSampleLoss], bank: MemoryBank) -> None:
    keys, rows = unit(B, D, seed=3), bank.embeddings("target")
    positives = label_positives(LABELS, bank)

    def mean_loss(online: torch.Tensor) -> torch.Tensor:
        return loss(contrastive_logits(online, keys.to(online), rows.to(online), temperature=0.5), positives).mean()

    online = unit(B, D, seed=2).double().requires_grad_()
    # Losses are computed in float32: steps that are large against its rounding.
    assert torch.autograd.gradcheck(mean_loss, online, eps=5e-3, atol=1e-3, rtol=1e-2)


@pytest.mark.parametrize("own_key", [True, False])
def test_ubernce_and_supcon_equal_loops(bank: MemoryBank, logits: torch.Tensor, own_key: bool) -> None:
    slow, count = 0.0, 0
    for i in range(B):
        positives = [0] * own_key + [1 + j for j in range(M) if j % 4 == LABELS[i]]
        if positives:
            slow += sum(-math.log(probabilities(bank, i)[p]) for p in positives) / len(positives)
            count += 1
    fast = mean_log_loss(logits, label_positives(LABELS, bank, own_key=own_key)).mean()
    assert float(fast) == pytest.approx(slow / count, rel=1e-5)


def test_ubernce_with_labels_that_nobody_shares_is_infonce(bank: MemoryBank, logits: torch.Tensor) -> None:
    strange = torch.arange(100, 100 + B)
    infonce = mean_log_loss(logits, own_key_positives(B, M, device=logits.device)).mean()
    assert torch.allclose(mean_log_loss(logits, label_positives(strange, bank)).mean(), infonce)


@pytest.mark.parametrize("mine", [True, False])
def test_coclr_equals_a_loop(bank: MemoryBank, logits: torch.Tensor, mine: bool) -> None:
    sources, guide = torch.tensor([0, 1, 2, 50, 5]), unit(B, D, seed=4)
    slow, slow_without_self = 0.0, 0.0
    for i in range(B):
        siblings = {1 + j for j in range(M) if j // 2 == sources[i]}
        order = sorted(range(M), key=lambda j: -float(guide[i] @ bank.embeddings("guide")[j]))
        mined = [1 + j for j in order if 1 + j not in siblings][:3] if mine else []
        p = probabilities(bank, i)
        others = siblings | set(mined)
        slow += -math.log(p[0] + sum(p[j] for j in others)) / B
        slow_without_self += -math.log(sum(p[j] for j in others) if others else p[0]) / B
    positives = mined_positives(guide, bank, sources=sources, column="guide", top_k=3, mine=mine)
    assert float(log_sum_loss(logits, positives).mean()) == pytest.approx(slow, rel=1e-5)
    assert float(log_sum_loss(logits, drop_own_key(positives)).mean()) == pytest.approx(slow_without_self, rel=1e-5)


def test_extreme_logits_stay_finite() -> None:
    logits = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    loss = log_sum_loss(logits, torch.tensor([[False, True, False]])).mean()
    loss.backward()
    assert loss.item() == pytest.approx(400) and torch.isfinite(logits.grad).all()  # type: ignore[arg-type]
    assert log_sum_loss(logits, torch.zeros(1, 3, dtype=torch.bool)).mean().item() == 0


def test_prototypes_equal_loops(bank: MemoryBank) -> None:
    online, rows, labels = unit(B, D, seed=2), bank.embeddings("target"), bank.ids("labels")
    prototypes, has_prototype = bank_prototypes(rows, labels, num_classes=6)
    assert has_prototype.tolist() == [True] * 4 + [False] * 2
    slow = []
    means = [F.normalize(rows[labels == c].mean(0), dim=0).double() for c in range(4)]
    for i in range(B):
        if LABELS[i] >= 0:
            raw = [math.exp(float(online[i].double() @ mean) / 0.1) for mean in means]
            slow.append(-math.log(raw[int(LABELS[i])] / sum(raw)))
    fast = prototype_loss(online, prototypes, has_prototype, LABELS, temperature=0.1).mean()
    assert float(fast) == pytest.approx(sum(slow) / len(slow), rel=1e-5)


def test_frozen_prototypes_are_the_same_for_a_seed_and_pull_outputs_to_their_class() -> None:
    prototypes = frozen_prototypes(4, D, seed=3)
    assert torch.equal(prototypes, frozen_prototypes(4, D, seed=3))
    assert torch.allclose(prototypes.norm(dim=1), torch.ones(4))
    perfect = 7 * prototypes[LABELS.clamp(min=0)]
    loss = frozen_prototype_loss(F.normalize(perfect, dim=1), prototypes, LABELS).mean()
    assert float(loss) == pytest.approx(0, abs=1e-6)
    outputs = torch.randn(B, D)
    slow = [2 - 2 * float(F.cosine_similarity(outputs[i], prototypes[LABELS[i]], dim=0)) for i in range(4)]
    loss = frozen_prototype_loss(F.normalize(outputs, dim=1), prototypes, LABELS).mean()
    assert float(loss) == pytest.approx(sum(slow) / 4, rel=1e-5)


def test_purity_leaves_the_target_itself_out() -> None:
    neighbors = Neighbors(torch.tensor([[0, 1, 2], [3, 1, -1]]))
    labels, bank_labels = torch.tensor([5, 6]), torch.tensor([5, 5, 6, 6])
    assert purity(neighbors, labels, bank_labels, own_indices=torch.tensor([0, 3])) == pytest.approx(1 / 3)
    assert purity(neighbors, torch.tensor([-1, -1]), bank_labels, own_indices=torch.tensor([0, 3])) is None


def test_overlap_counts_shared_rows() -> None:
    first, second = Neighbors(torch.tensor([[1, 2, -1]])), Neighbors(torch.tensor([[2, 7, 9]]))
    assert overlap(first, second) == 0.5


def test_effective_rank_counts_directions_and_collapse_is_seen() -> None:
    spread = unit(5000, 8, seed=0)
    assert 7.9 < effective_rank(spread) <= 8 and embedding_std(spread) == pytest.approx(1, abs=0.05)
    flat = torch.cat([spread[:, :3], torch.zeros(5000, 5)], dim=1)
    assert 2.9 < effective_rank(flat) <= 3.01
    collapsed = unit(1, 8, seed=0).expand(100, 8)
    assert effective_rank(collapsed) == pytest.approx(1, abs=0.5) and embedding_std(collapsed) < 1e-4
