"""The search in slices, class by class and among some rows equals loops over all pairs."""

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.methods import neighbors as neighbors_module
from covid_cmsf.methods.neighbors import nearest, nearest_same_label

B, M, D = 9, 60, 8


def unit(num: int, *, seed: int) -> torch.Tensor:
    return F.normalize(torch.randn(num, D, generator=torch.Generator().manual_seed(seed)), dim=1)


def slow(queries: torch.Tensor, bank: torch.Tensor, k: int, allowed: torch.Tensor) -> list[list[int]]:
    """The k nearest allowed (B, M) rows of each query."""
    found = []
    for query, may in zip(queries, allowed, strict=True):
        indices = [j for j in range(len(bank)) if may[j]]
        found.append(sorted(indices, key=lambda j: -float(sum(query[d] * bank[j, d] for d in range(D))))[:k])
    return found


def listed(indices: torch.Tensor) -> list[list[int]]:
    """Rows (B, K) without the -1, which are at the end."""
    lists = [[j for j in row if j >= 0] for row in indices.tolist()]
    assert all(row[: len(kept)] == kept for row, kept in zip(indices.tolist(), lists, strict=True))
    return lists


def some(*shape: int, share: float, seed: int) -> torch.Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed)) < share


@pytest.mark.parametrize("slice_bytes", [1, 700, 32_000_000])
@pytest.mark.parametrize("forbidden", [None, some(B, M, share=0.5, seed=3), some(B, M, share=0.95, seed=4)])
@pytest.mark.parametrize("among", [None, torch.tensor([50, 3, 7, 8, 20, 59, 0]), torch.tensor([], dtype=torch.int64)])
@pytest.mark.parametrize("k", [1, 4, 100])
def test_slices_of_the_bank_and_of_some_of_its_rows_equal_loops(
    monkeypatch: pytest.MonkeyPatch,
    slice_bytes: int,
    forbidden: torch.Tensor | None,
    among: torch.Tensor | None,
    k: int,
) -> None:
    monkeypatch.setattr(neighbors_module, "SLICE_BYTES", slice_bytes)
    queries, bank = unit(B, seed=0), unit(M, seed=1)
    allowed = torch.ones(B, M, dtype=torch.bool) if forbidden is None else ~forbidden
    if among is not None:
        allowed &= torch.isin(torch.arange(M), among)
    found = nearest(queries, bank, k, forbidden=forbidden, among=among).indices
    assert found.shape == (B, min(k, M if among is None else len(among)))
    assert listed(found) == slow(queries, bank, k, allowed)


LABELS = {
    "many classes": (torch.arange(B) % 7, torch.arange(M) % 20),
    "few classes": (torch.arange(B) % 3, torch.arange(M) % 3),
    "one class": (torch.zeros(B, dtype=torch.int64), torch.zeros(M, dtype=torch.int64)),
    "one class has most rows": (torch.arange(B) % 4, (torch.arange(M) - 50).clamp(min=0)),
    "some are unknown": (torch.arange(B) % 4 - 1, torch.arange(M) % 4 - 1),
    "all are unknown": (torch.full((B,), -1), torch.full((M,), -1)),
    "no row has the label": (torch.full((B,), 5), torch.arange(M) % 3),
}


@pytest.mark.parametrize("which", LABELS)
@pytest.mark.parametrize("forbidden", [None, some(B, M, share=0.5, seed=3), some(B, M, share=1.0, seed=4)])
@pytest.mark.parametrize("k", [1, 4, 100])
@pytest.mark.parametrize("slice_bytes", [1, 700, 32_000_000])
def test_the_search_class_by_class_equals_loops(
    monkeypatch: pytest.MonkeyPatch, which: str, forbidden: torch.Tensor | None, k: int, slice_bytes: int
) -> None:
    monkeypatch.setattr(neighbors_module, "SLICE_BYTES", slice_bytes)
    queries, bank = unit(B, seed=0), unit(M, seed=1)
    labels, bank_labels = LABELS[which]
    allowed = (labels[:, None] == bank_labels[None, :]) & (labels >= 0)[:, None]
    if forbidden is not None:
        allowed &= ~forbidden
    found = nearest_same_label(queries, bank, k, labels=labels, bank_labels=bank_labels, forbidden=forbidden).indices
    assert listed(found) == slow(queries, bank, k, allowed)


@pytest.mark.parametrize("which", LABELS)
def test_a_search_by_label_gathers_at_most_as_many_rows_as_the_bank_has(
    monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    gathered = []
    among, everywhere = neighbors_module.nearest_among, neighbors_module.nearest

    def count_candidates(queries, bank, k, candidates):  # type: ignore[no-untyped-def]
        gathered.append(candidates.numel())
        return among(queries, bank, k, candidates)

    def count_rows(*args, among, **kwargs):  # type: ignore[no-untyped-def]
        gathered.append(len(among))
        return everywhere(*args, among=among, **kwargs)

    monkeypatch.setattr(neighbors_module, "nearest_among", count_candidates)
    monkeypatch.setattr(neighbors_module, "nearest", count_rows)
    labels, bank_labels = LABELS[which]
    nearest_same_label(unit(B, seed=0), unit(M, seed=1), 4, labels=labels, bank_labels=bank_labels)
    assert gathered and sum(gathered) <= M


def test_half_precision_queries_are_searched_in_float32() -> None:
    queries, bank = unit(B, seed=0).half(), unit(M, seed=1)
    labels, bank_labels = LABELS["few classes"]
    allowed = labels[:, None] == bank_labels[None, :]
    found = nearest_same_label(queries, bank, 4, labels=labels, bank_labels=bank_labels).indices
    assert listed(found) == slow(queries.float(), bank, 4, allowed)


def test_nothing_is_near_in_an_empty_bank() -> None:
    assert nearest(unit(B, seed=0), torch.zeros(0, D), 4).indices.shape == (B, 0)
