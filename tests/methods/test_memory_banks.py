"""Two banks: every sample in the main one, those with a label in the other, and the indices of a batch in both."""

import pytest
import torch
from torch import Tensor

from covid_cmsf.methods.memory_bank import BankIndices, MemoryBanks


def push(banks: MemoryBanks, videos: list[int], labels: list[int]) -> BankIndices:
    numbers = torch.tensor(videos)
    return banks.push_(
        {"target": numbers[:, None].float().expand(-1, 2)},
        videos=numbers,
        sources=numbers // 2,
        labels=torch.tensor(labels),
        true_labels=torch.tensor([video % 3 for video in videos]),
    )


def held(banks: MemoryBanks, name: str) -> list[int]:
    bank = banks.main if name == "main" else banks.labeled
    assert bank is not None
    videos = bank.ids("videos")
    assert bank.embeddings("target")[:, 0].tolist() == videos.tolist()
    assert bank.ids("true_labels").tolist() == (videos % 3).tolist()
    return sorted(videos.tolist())


@pytest.mark.parametrize("size", [1, 3, 5, 12])
def test_both_banks_wrap_and_hold_the_newest_whatever_the_batch_size(size: int) -> None:
    banks, seen = MemoryBanks(7, {"target": 2}, labeled_size=4), []
    for start in range(0, 36, size):
        videos = list(range(start, min(start + size, 36)))
        labels = [video % 3 if video % 4 else -1 for video in videos]  # every fourth is unlabeled
        indices = push(banks, videos, labels)
        seen += list(zip(videos, labels, strict=True))
        assert held(banks, "main") == [video for video, _ in seen][-7:]
        assert held(banks, "labeled") == [video for video, label in seen if label >= 0][-4:]
        assert indices.labeled is not None and banks.labeled is not None
        _stand_where_it_says(indices.main, banks.main.videos, videos)
        _stand_where_it_says(indices.labeled, banks.labeled.videos, videos)
        assert [row == -1 for row in indices.labeled.tolist() if len(videos) <= 4] == [
            label < 0 for label in labels if len(videos) <= 4
        ]


def test_a_batch_without_labels_leaves_the_second_bank_alone() -> None:
    banks = MemoryBanks(4, {"target": 2}, labeled_size=4)
    indices = push(banks, [1, 2], [-1, -1])
    assert indices.labeled is not None and indices.labeled.tolist() == [-1, -1]
    assert held(banks, "labeled") == [] and held(banks, "main") == [1, 2]


def test_without_a_second_bank_there_is_none() -> None:
    banks = MemoryBanks(4, {"target": 2})
    assert banks.labeled is None and push(banks, [1], [0]).labeled is None


def test_rows_of_some_examples() -> None:
    indices = BankIndices(torch.arange(4), torch.tensor([-1, 5, -1, 6]))
    selected = indices.select(torch.tensor([False, True, True, False]))
    assert selected.main.tolist() == [1, 2] and selected.labeled is not None and selected.labeled.tolist() == [5, -1]
    assert BankIndices(torch.arange(4)).select(slice(1, 3)).labeled is None


def test_all_state_of_both_is_in_the_state_dict() -> None:
    first, second = (MemoryBanks(5, {"target": 2}, labeled_size=3) for _ in range(2))
    push(first, list(range(9)), [0, -1, 2] * 3)
    second.load_state_dict(first.state_dict())
    for banks in (first, second):
        push(banks, [9, 10], [1, -1])
    pairs = zip(first.state_dict().values(), second.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)


def _stand_where_it_says(indices: Tensor, bank_videos: Tensor, videos: list[int]) -> None:
    for row, video in zip(indices.tolist(), videos, strict=True):
        assert row == -1 or int(bank_videos[row]) == video
