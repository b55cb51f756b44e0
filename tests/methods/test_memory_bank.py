"""The bank: aligned columns, any batch size, nothing lost at the wrap, all state persistent."""

import pytest
import torch

from covid_cmsf.methods.memory_bank import MemoryBank


def push(bank: MemoryBank, numbers: list[int]) -> torch.Tensor:
    values = torch.tensor(numbers)
    columns = {"target": values[:, None].float().expand(-1, 3), "guide": -values[:, None].float().expand(-1, 2)}
    return bank.push_(columns, videos=values, sources=values // 2, labels=values % 3, true_labels=values % 5)


@pytest.mark.parametrize("sizes", [[4, 4, 4], [1] * 12, [3, 5, 7, 2], [10], [11], [25], [6, 25, 1]])
def test_the_bank_holds_the_newest_rows_whatever_the_batch_sizes(sizes: list[int]) -> None:
    bank, start = MemoryBank(10, {"target": 3, "guide": 2}), 0
    slow: list[int] = []
    for size in sizes:
        indices = push(bank, list(range(start, start + size)))
        slow = (slow + list(range(start, start + size)))[-10:]
        start += size
        kept = indices >= 0
        assert bank.videos[indices[kept]].tolist() == list(range(start - int(kept.sum()), start))
    assert sorted(bank.ids("videos").tolist()) == slow and len(bank) == len(slow)
    for i, video in enumerate(bank.ids("videos").tolist()):
        assert (
            bank.embeddings("target")[i].tolist() == [video] * 3
            and bank.embeddings("guide")[i].tolist() == [-video] * 2
        )
        assert (int(bank.sources[i]), int(bank.labels[i]), int(bank.true_labels[i])) == (
            video // 2,
            video % 3,
            video % 5,
        )


def test_only_filled_rows_are_seen() -> None:
    bank = MemoryBank(10, {"target": 3, "guide": 2})
    assert len(bank) == 0 and bank.embeddings("target").shape == (0, 3)
    push(bank, [1, 2, 3])
    assert len(bank) == 3 and bank.ids("labels").tolist() == [1, 2, 0]


def test_all_state_is_in_the_state_dict() -> None:
    first, second = MemoryBank(5, {"target": 3, "guide": 2}), MemoryBank(5, {"target": 3, "guide": 2})
    push(first, list(range(7)))
    second.load_state_dict(first.state_dict())
    push(first, [7, 8]), push(second, [7, 8])
    assert all(
        torch.equal(a, b) for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    )


def test_the_mean_age_of_a_full_bank_is_half() -> None:
    bank = MemoryBank(100, {"target": 3, "guide": 2})
    assert bank.mean_age() == 0
    push(bank, list(range(350)))
    assert bank.mean_age() == pytest.approx(0.505)


def test_nothing_pushed_carries_a_gradient() -> None:
    bank = MemoryBank(4, {"target": 2})
    values, numbers = torch.ones(2, 2, requires_grad=True), torch.arange(2)
    bank.push_({"target": values * 2}, videos=numbers, sources=numbers, labels=numbers)
    assert not bank.embeddings("target").requires_grad


def test_nonsense_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 entry"):
        MemoryBank(0, {"target": 3})
    with pytest.raises(ValueError):
        MemoryBank(4, {"target": 2}).push_({}, videos=torch.arange(1), sources=torch.arange(1), labels=torch.arange(1))
