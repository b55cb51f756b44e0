"""The subsets of Table A2: sizes, strata, seeds."""

import random
from collections import Counter

import pytest

from covid_cmsf.evaluation.transfer.datasets import (
    DATASETS,
    SUBSETS,
    SplitRule,
    TransferDataset,
    size_differences,
    split_images,
)

# How many images of each class whole copies have, in the pieces that torchvision hands out. Where classes differ in
# size (Cars, Aircraft, Pets, Caltech-101, Flowers' test set) the counts are plausible, and their sums are right.
COUNTS: dict[str, dict[str, list[int]]] = {
    "food101": {"train": [750] * 101, "test": [250] * 101},
    "cifar10": {"train": [5000] * 10, "test": [1000] * 10},
    "cifar100": {"train": [500] * 100, "test": [100] * 100},
    "sun397": {"train": [50] * 397, "test": [50] * 397},
    "cars": {"train": [43] * 67 + [41] * 103 + [40] * 26, "test": [41] * 195 + [46]},
    "aircraft": {"train": [67] * 67 + [66] * 33, "test": [33] * 67 + [34] * 33},
    "dtd": {"train": [40] * 47, "val": [40] * 47, "test": [40] * 47},
    "pets": {"train": [100] * 36 + [80], "test": [100] * 36 + [69]},
    "caltech101": {"all": [89] * 101 + [155]},
    "flowers102": {"train": [10] * 102, "val": [10] * 102, "test": [60] * 101 + [89]},
}


def simulated(row: TransferDataset) -> tuple[list[str], list[int], list[str]]:
    """Ids, labels and pieces of a whole copy."""
    entries = []
    for source_split, counts in COUNTS[row.name].items():
        labels = [label for label, count in enumerate(counts) for _ in range(count)]
        entries += [(f"{source_split}/{index:06d}", label, source_split) for index, label in enumerate(labels)]
    return [entry[0] for entry in entries], [entry[1] for entry in entries], [entry[2] for entry in entries]


@pytest.mark.slow
@pytest.mark.parametrize("row", DATASETS.values(), ids=list(DATASETS))
def test_a_whole_copy_gives_the_sizes_of_table_a2(row: TransferDataset) -> None:
    ids, labels, source_splits = simulated(row)
    assert max(labels) + 1 == row.num_classes
    subsets = split_images(ids, labels, source_splits, row.rule)
    sizes = Counter(subsets.values())
    assert tuple(sizes[subset] for subset in SUBSETS) == row.sizes
    assert size_differences(row, sizes) == []
    by_class = {
        subset: Counter(label for i, label in zip(ids, labels, strict=True) if subsets[i] == subset)
        for subset in SUBSETS
    }
    for label in range(row.num_classes):
        members = [
            i
            for i, one, source_split in zip(ids, labels, source_splits, strict=True)
            if one == label and source_split != "test"
        ]
        if isinstance(row.rule.val, int):
            assert by_class["val"][label] == row.rule.val
        elif row.rule.val is not None:
            assert abs(by_class["val"][label] - row.rule.val * len(members)) <= 0.5
    if row.name == "caltech101":
        assert set(by_class["train"].values()) == {25} and set(by_class["val"].values()) == {5}


def test_all_ten_rows_are_there() -> None:
    assert " ".join(DATASETS) == "food101 cifar10 cifar100 sun397 cars aircraft dtd pets caltech101 flowers102"
    assert " ".join(row.column for row in DATASETS.values()) == "Food C10 C100 SUN Cars Air DTD Pets Calt Flwr"
    classes = [name for name, row in DATASETS.items() if row.metric == "mean_per_class"]
    assert classes == ["aircraft", "pets", "caltech101", "flowers102"]


@pytest.mark.parametrize("name", ["pets", "cars", "caltech101"])
def test_draws_follow_from_ids_and_seed_and_not_from_the_order_of_rows(name: str) -> None:
    row = DATASETS[name]
    ids, labels, source_splits = simulated(row)
    subsets = split_images(ids, labels, source_splits, row.rule, seed=3)
    order = list(range(len(ids)))
    random.Random(0).shuffle(order)
    shuffled = [ids[i] for i in order], [labels[i] for i in order], [source_splits[i] for i in order]
    assert split_images(*shuffled, row.rule, seed=3) == subsets
    others = split_images(ids, labels, source_splits, row.rule, seed=4)
    assert others != subsets and Counter(others.values()) == Counter(subsets.values())


def test_a_partial_copy_is_told_by_its_sizes() -> None:
    row = DATASETS["dtd"]
    assert size_differences(row, {"train": 1880, "test": 1800}) == [
        "val has 0 images, Table A2 has 1880",
        "test has 1800 images, Table A2 has 1880",
    ]


def test_a_split_that_cannot_be_drawn_is_an_error() -> None:
    with pytest.raises(ValueError, match="class 0 has 3 images; the split needs at least 4"):
        split_images(["a", "b", "c", "d"], [0] * 4, ["train"] * 3 + ["test"], SplitRule(3))
    with pytest.raises(ValueError, match="class 1 has 2 images; the split needs at least 3"):
        split_images(["a", "b"], [1, 1], ["all", "all"], SplitRule(1, num_trainval=2))
    with pytest.raises(ValueError, match="the images are in train; this split needs test, train, val"):
        split_images(["a"], [0], ["train"], SplitRule(None))
    with pytest.raises(ValueError, match="is listed twice"):
        split_images(["a", "a"], [0, 0], ["train", "test"], SplitRule(1))
