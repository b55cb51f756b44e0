"""The ten data sets of Table A2: sizes, metric, and how images are split into train, val and test.

Two points that the appendix leaves open follow from its sizes. Caltech-101: the text calls 30 random images per
category the test set, but the sizes only fit 30 as train and val (25 + 5) with the rest as test, over all 102 folders,
background included (102 * 25 = 2550, 102 * 5 = 510, 9144 - 3060 = 6084). And 20% of a class is rounded to the nearest
integer: rounding down gives fewer than the 1635 of Cars, rounding up many more.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Metric = Literal["top1", "mean_per_class"]
METRICS: tuple[Metric, ...] = ("top1", "mean_per_class")
SUBSETS = ("train", "val", "test")
SourceSplits = Mapping[str, Mapping[str, Any]]  # {subset of torchvision: arguments of its constructor}


@dataclass(frozen=True)
class SplitRule:
    """How many images per class are val.

    `val` None: the data set has a val subset. `num_trainval`, for a data set without a test subset: images per class
    that are drawn for train and val together; the rest is test.
    """

    val: int | float | None  # a number, or a fraction of the class
    num_trainval: int | None = None


@dataclass(frozen=True)
class TransferDataset:
    """A row of Table A2."""

    name: str  # on the command line
    column: str  # header in the paper's tables
    torchvision: str  # class in torchvision.datasets
    folder: str  # below the root
    contents: str  # content of the folder, for error messages
    num_classes: int
    sizes: tuple[int, int, int]  # train, val, test
    metric: Metric
    rule: SplitRule
    source_splits: SourceSplits
    labels: str = "_labels"  # attribute of the torchvision data set with the labels


TRAIN_TEST: SourceSplits = {"train": {"split": "train"}, "test": {"split": "test"}}
TRAINVAL: SourceSplits = {"train": {"split": "trainval"}, "test": {"split": "test"}}
TRAIN_VAL_TEST: SourceSplits = {subset: {"split": subset} for subset in SUBSETS}
TRAIN_FLAG: SourceSplits = {"train": {"train": True}, "test": {"train": False}}
FROM_LISTS: SourceSplits = {"train": {}, "test": {}}  # SUN397: see `open_sun397`
UNSPLIT: SourceSplits = {"all": {}}  # Caltech-101: see `open_torchvision`

# fmt: off
TABLE_A2 = (
    TransferDataset("food101", "Food", "Food101", "food-101", "meta/ and images/",
                    101, (68175, 7575, 25250), "top1", SplitRule(75), TRAIN_TEST),
    TransferDataset("cifar10", "C10", "CIFAR10", "cifar-10-batches-py", "data_batch_1 to 5, test_batch, batches.meta",
                    10, (49500, 500, 10000), "top1", SplitRule(50), TRAIN_FLAG, "targets"),
    TransferDataset("cifar100", "C100", "CIFAR100", "cifar-100-python", "train, test, meta",
                    100, (45000, 5000, 10000), "top1", SplitRule(50), TRAIN_FLAG, "targets"),
    TransferDataset("sun397", "SUN", "SUN397", "SUN397", "ClassName.txt, a/ to z/, Training_01.txt, Testing_01.txt",
                    397, (15880, 3970, 19850), "top1", SplitRule(10), FROM_LISTS, "labels"),
    TransferDataset("cars", "Cars", "StanfordCars", "stanford_cars",
                    "devkit/, cars_train/, cars_test/, cars_test_annos_withlabels.mat",
                    196, (6509, 1635, 8041), "top1", SplitRule(0.2), TRAIN_TEST, "_samples"),
    TransferDataset("aircraft", "Air", "FGVCAircraft", "fgvc-aircraft-2013b", "data/",
                    100, (5367, 1300, 3333), "mean_per_class", SplitRule(0.2), TRAINVAL),
    TransferDataset("dtd", "DTD", "DTD", "dtd", "dtd/ with images/ and labels/",  # torchvision uses partition 1
                    47, (1880, 1880, 1880), "top1", SplitRule(None), TRAIN_VAL_TEST),
    TransferDataset("pets", "Pets", "OxfordIIITPet", "oxford-iiit-pet", "images/ and annotations/",
                    37, (2940, 740, 3669), "mean_per_class", SplitRule(20), TRAINVAL),
    TransferDataset("caltech101", "Calt", "Caltech101", "caltech101", "101_ObjectCategories/",
                    102, (2550, 510, 6084), "mean_per_class", SplitRule(5, num_trainval=30), UNSPLIT, "targets"),
    TransferDataset("flowers102", "Flwr", "Flowers102", "flowers-102", "jpg/, imagelabels.mat, setid.mat",
                    102, (1020, 1020, 6149), "mean_per_class", SplitRule(None), TRAIN_VAL_TEST),
)
# fmt: on
DATASETS = {dataset.name: dataset for dataset in TABLE_A2}


def size_differences(dataset: TransferDataset, sizes: Mapping[str, int]) -> list[str]:
    """Describe each subset whose size differs from Table A2."""
    expected = dict(zip(SUBSETS, dataset.sizes, strict=True))
    return [
        f"{subset} has {sizes.get(subset, 0)} images, Table A2 has {expected[subset]}"
        for subset in SUBSETS
        if sizes.get(subset, 0) != expected[subset]
    ]


def split_images(
    ids: Sequence[str], labels: Sequence[int], source_splits: Sequence[str], rule: SplitRule, *, seed: int = 0
) -> dict[str, str]:
    """Return {id: train, val or test}, stratified; it depends on ids and seed, not on the order of the images.

    `source_splits` has the subset of each image in the original data set: train, val, test or all.
    """
    if len(set(ids)) != len(ids):
        raise ValueError("an image is listed twice")
    subsets = dict(zip(ids, source_splits, strict=True))
    expected = set(SUBSETS) if rule.val is None else {"all"} if rule.num_trainval is not None else {"train", "test"}
    if set(source_splits) != expected:
        raise ValueError(
            f"the images are in {', '.join(sorted(set(source_splits)))}; this split needs {', '.join(sorted(expected))}"
        )
    if rule.val is None:
        return subsets
    for label, members in _by_class(ids, labels, source_splits).items():
        shuffled = [members[i] for i in np.random.default_rng([seed, label]).permutation(len(members))]
        num_val = rule.val if isinstance(rule.val, int) else round(rule.val * len(members))
        num_trainval = len(members) if rule.num_trainval is None else rule.num_trainval
        needed = num_val + 1 if rule.num_trainval is None else num_trainval + 1
        if len(members) < needed:
            raise ValueError(f"class {label} has {len(members)} images; the split needs at least {needed}")
        subsets |= dict.fromkeys(shuffled[:num_val], "val")
        subsets |= dict.fromkeys(shuffled[num_val:num_trainval], "train")
        subsets |= dict.fromkeys(shuffled[num_trainval:], "test")
    return subsets


def _by_class(ids: Sequence[str], labels: Sequence[int], source_splits: Sequence[str]) -> dict[int, list[str]]:
    """Return {label: ids} of the images outside of the test set, sorted by id."""
    classes: dict[int, list[str]] = {}
    for image, label, source_split in sorted(zip(ids, labels, source_splits, strict=True)):
        if source_split != "test":
            classes.setdefault(label, []).append(image)
    return classes
