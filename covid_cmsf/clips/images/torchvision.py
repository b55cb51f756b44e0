"""Image data sets of torchvision by name: CIFAR10, FashionMNIST, SVHN, DTD, ..."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.images.base import Images, check_size, image_record, readable_image, standard_subset_names
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.logs import progress_bar

# Addresses come from configuration files, so only classes that run no code from their files: LSUN, for one, unpickles
# `_cache_*` from the working directory. Of these, CIFAR's pickles are compared with a known MD5 first, and the rest
# reads images, text, MAT and IDX files.
SAFE_DATASETS = (
    "CIFAR10", "CIFAR100", "CLEVRClassification", "Caltech101", "Caltech256", "Country211", "DTD", "EuroSAT", "FER2013",
    "FGVCAircraft", "FashionMNIST", "Flowers102", "Food101", "GTSRB", "Imagenette", "KMNIST", "MNIST", "OxfordIIITPet",
    "RenderedSST2", "STL10", "SUN397", "SVHN", "StanfordCars", "USPS",
)  # fmt: skip
SPLITS = ("train", "trainval", "val", "valid", "test")
LABEL_ATTRIBUTES = ("targets", "labels", "_labels", "y")  # of torchvision's data sets


class TorchvisionImages(Images):
    """A torchvision data set, read by torchvision, in its order."""

    def __init__(self, records: list[ClipRecord], datasets: Mapping[str, Any]) -> None:
        super().__init__(records)
        self._datasets = datasets

    @classmethod
    def open(cls, name: str, root: str, *, download: bool = False) -> "TorchvisionImages":
        """Open the data set `name` below `root`; nothing is downloaded unless `download`."""
        datasets = open_subsets(name, root, download=download)
        records = []
        for subset, images in datasets.items():
            names = [str(one) for one in getattr(images, "classes", [])]
            for number, label in enumerate(read_labels(images, name)):
                class_name = names[label] if 0 <= label < len(names) else str(label)
                records.append(image_record(subset, f"{number:07d}", label=label, class_name=class_name))
        return cls(records, datasets)

    def load_image(self, record: ClipRecord) -> NDArray[np.uint8]:
        """Return the image as RGB (H, W, 3)."""
        subset, _, number = record.video_id.partition("/")
        with readable_image(f"image {number} of {type(self._datasets[subset]).__name__}'s {subset} subset"):
            image = self._datasets[subset][int(number)][0]
            check_size(*image.size)
            return np.asarray(image.convert("RGB"))


def open_subsets(name: str, root: str, *, download: bool) -> dict[str, Any]:
    """Return {subset: data set}; torchvision's constructors select a subset by `train` or by `split`."""
    if name not in SAFE_DATASETS:
        raise ValueError(f"torchvision:{name} is not a data set that can be opened by name: {', '.join(SAFE_DATASETS)}")
    import torchvision.datasets  # only here: slow to import

    dataset_class: Any = getattr(torchvision.datasets, name)
    parameters = inspect.signature(dataset_class.__init__).parameters
    options: dict[str, Any] = {"download": download} if "download" in parameters else {}
    try:
        if "train" in parameters:
            return {subset: dataset_class(root, train=subset == "train", **options) for subset in ("train", "test")}
        if "split" in parameters:
            return _open_splits(dataset_class, root, options)
        return {"train": dataset_class(root, **options)}
    except (RuntimeError, FileNotFoundError) as error:
        hint = "" if download else "; put them there, or add download=true to the URI"
        raise FileNotFoundError(f"the files of {name} are not below {root}{hint} ({error})") from None


def read_labels(images: Any, name: str) -> list[int]:
    """Return the label of every image, from the data set's list if it has one, else by reading every image."""
    for attribute in LABEL_ATTRIBUTES:
        values = getattr(images, attribute, None)
        if values is not None and len(values) == len(images):
            return [int(value) for value in values]
    labels = []
    with progress_bar(f"reading the labels of {name}", len(images)) as advance:
        for number in range(len(images)):
            labels.append(int(images[number][1]))
            advance()
    return labels


def _open_splits(dataset_class: Any, root: str, options: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split in SPLITS:
        if split == "trainval" and "train" in found:
            continue
        try:
            found[split] = dataset_class(root, split=split, **options)
        except ValueError:  # no such split in this set
            continue
    standard = standard_subset_names(found)
    if "train" not in standard.values():
        raise ValueError(
            f"torchvision's {dataset_class.__name__} has no training subset, only {', '.join(found) or 'none'}"
        )
    return {standard[split]: images for split, images in found.items()}
