"""The ten data sets of Table A2: sizes, metric, and how val is cut.

Two things that the appendix leaves unclear were settled by its own numbers. Caltech-101: the text calls 30 random
images a category the test set, but the sizes only fit 30 as train and val (25 + 5) with the rest as test, over all 102
folders, background included (102 * 25 = 2550, 102 * 5 = 510, 9144 - 3060 = 6084). And 20% of a class is rounded to the
nearest whole number: rounding down cannot reach the 1635 of Cars, rounding up would exceed it by far.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

Metric = Literal["top1", "mean_per_class"]
METRICS: tuple[Metric, ...] = ("top1", "mean_per_class")
PARTS = ("train", "val", "test")
Pieces = Mapping[str, Mapping[str, Any]]  # the constructor's arguments for each piece that torchvision hands out


@dataclass(frozen=True)
class SplitRule:
    """How many images of each class become val.

    `val` None: the data set brings its own. `learn`: of a data set without a test set, so many images of each class
    are drawn for train and val together, and the rest is test.
    """

    val: int | float | None  # a number, or a share of the class
    learn: int | None = None


@dataclass(frozen=True)
class TransferDataset:
    """A row of Table A2."""

    name: str  # on the command line
    column: str  # in the paper's tables
    torchvision: str  # class in torchvision.datasets
    folder: str  # below the root
    holds: str  # what must lie in the folder
    num_classes: int
    sizes: tuple[int, int, int]  # train, val, test
    metric: Metric
    rule: SplitRule
    pieces: Pieces
    labels: str = "_labels"  # the attribute with the label of every image


SPLIT: Pieces = {"train": {"split": "train"}, "test": {"split": "test"}}
TRAINVAL: Pieces = {"train": {"split": "trainval"}, "test": {"split": "test"}}
THREE: Pieces = {part: {"split": part} for part in PARTS}
FLAG: Pieces = {"train": {"train": True}, "test": {"train": False}}
LISTED: Pieces = {"train": {}, "test": {}}  # SUN397: see `sun397`
WHOLE: Pieces = {"all": {}}  # Caltech-101: see `opening`

# fmt: off
TABLE_A2 = (
    TransferDataset("food101", "Food", "Food101", "food-101", "meta/ and images/",
                    101, (68175, 7575, 25250), "top1", SplitRule(75), SPLIT),
    TransferDataset("cifar10", "C10", "CIFAR10", "cifar-10-batches-py", "data_batch_1 to 5, test_batch, batches.meta",
                    10, (49500, 500, 10000), "top1", SplitRule(50), FLAG, "targets"),
    TransferDataset("cifar100", "C100", "CIFAR100", "cifar-100-python", "train, test, meta",
                    100, (45000, 5000, 10000), "top1", SplitRule(50), FLAG, "targets"),
    TransferDataset("sun397", "SUN", "SUN397", "SUN397", "ClassName.txt, a/ to z/, Training_01.txt, Testing_01.txt",
                    397, (15880, 3970, 19850), "top1", SplitRule(10), LISTED, "labels"),
    TransferDataset("cars", "Cars", "StanfordCars", "stanford_cars",
                    "devkit/, cars_train/, cars_test/, cars_test_annos_withlabels.mat",
                    196, (6509, 1635, 8041), "top1", SplitRule(0.2), SPLIT, "_samples"),
    TransferDataset("aircraft", "Air", "FGVCAircraft", "fgvc-aircraft-2013b", "data/",
                    100, (5367, 1300, 3333), "mean_per_class", SplitRule(0.2), TRAINVAL),
    TransferDataset("dtd", "DTD", "DTD", "dtd", "dtd/ with images/ and labels/",  # torchvision takes partition 1
                    47, (1880, 1880, 1880), "top1", SplitRule(None), THREE),
    TransferDataset("pets", "Pets", "OxfordIIITPet", "oxford-iiit-pet", "images/ and annotations/",
                    37, (2940, 740, 3669), "mean_per_class", SplitRule(20), TRAINVAL),
    TransferDataset("caltech101", "Calt", "Caltech101", "caltech101", "101_ObjectCategories/",
                    102, (2550, 510, 6084), "mean_per_class", SplitRule(5, learn=30), WHOLE, "targets"),
    TransferDataset("flowers102", "Flwr", "Flowers102", "flowers-102", "jpg/, imagelabels.mat, setid.mat",
                    102, (1020, 1020, 6149), "mean_per_class", SplitRule(None), THREE),
)
# fmt: on
DATASETS = {row.name: row for row in TABLE_A2}


def size_differences(row: TransferDataset, sizes: Mapping[str, int]) -> list[str]:
    """One sentence for each part whose size is not that of Table A2; none for a whole copy."""
    expected = dict(zip(PARTS, row.sizes, strict=True))
    return [
        f"{part} has {sizes.get(part, 0)} images, Table A2 has {expected[part]}"
        for part in PARTS
        if sizes.get(part, 0) != expected[part]
    ]
