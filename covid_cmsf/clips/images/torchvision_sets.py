"""Any image set of torchvision by its name: CIFAR10, FashionMNIST, SVHN, DTD, ..."""

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
import torchvision.datasets
from numpy.typing import NDArray

from covid_cmsf.clips.images.images import Images, image_record, our_parts
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.logs import progress_bar

SPLITS = ("train", "trainval", "val", "valid", "test")
LABELS = ("targets", "labels", "_labels", "y")  # where torchvision's sets keep them


class TorchvisionImages(Images):
    """A set of torchvision: its own reader gives the images, one after another, in its own order."""

    def __init__(self, records: list[ClipRecord], sets: Mapping[str, Any]) -> None:
        super().__init__(records)
        self._sets = sets

    @classmethod
    def open(cls, name: str, root: str, *, download: bool = False) -> "TorchvisionImages":
        """The set called `name` below `root`. Nothing is fetched unless `download`."""
        sets = open_parts(name, root, download=download)
        records = []
        for part, images in sets.items():
            names = [str(one) for one in getattr(images, "classes", [])]
            for number, label in enumerate(labels_of(images, name)):
                class_name = names[label] if 0 <= label < len(names) else str(label)
                records.append(image_record(part, f"{number:07d}", label=label, class_name=class_name))
        return cls(records, sets)

    def picture(self, record: ClipRecord) -> NDArray[np.uint8]:
        """(H, W, 3)."""
        part, _, number = record.video_id.partition("/")
        return np.asarray(self._sets[part][int(number)][0].convert("RGB"))


def open_parts(name: str, root: str, *, download: bool) -> dict[str, Any]:
    """{train: the set, test: the set}; the constructors of torchvision tell parts by `train` or by `split`."""
    kind: Any = getattr(torchvision.datasets, name, None)
    is_set = inspect.isclass(kind) and issubclass(kind, torchvision.datasets.VisionDataset)
    if not is_set:
        raise ValueError(f"torchvision has no image set {name!r}; for example CIFAR10, CIFAR100, FashionMNIST, SVHN")
    takes = inspect.signature(kind.__init__).parameters
    options: dict[str, Any] = {"download": download} if "download" in takes else {}
    try:
        if "train" in takes:
            return {part: kind(root, train=part == "train", **options) for part in ("train", "test")}
        if "split" in takes:
            return _by_split(kind, root, options)
        return {"train": kind(root, **options)}
    except (RuntimeError, FileNotFoundError) as error:
        hint = "" if download else "; put them there, or add download=true to the address"
        raise FileNotFoundError(f"the files of {name} are not below {root}{hint} ({error})") from None


def labels_of(images: Any, name: str) -> list[int]:
    """The label of every image, without opening the images where the set lists them."""
    for attribute in LABELS:
        values = getattr(images, attribute, None)
        if values is not None and len(values) == len(images):
            return [int(value) for value in values]
    labels = []
    with progress_bar(f"reading the labels of {name}", len(images)) as advance:
        for number in range(len(images)):
            labels.append(int(images[number][1]))
            advance()
    return labels


def _by_split(kind: Any, root: str, options: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for split in SPLITS:
        if split == "trainval" and "train" in found:
            continue
        try:
            found[split] = kind(root, split=split, **options)
        except ValueError:  # no such split in this set
            continue
    ours = our_parts(found)
    if "train" not in ours.values():
        raise ValueError(
            f"torchvision's {kind.__name__} has no training part; its parts here: {', '.join(found) or 'none'}"
        )
    return {ours[split]: images for split, images in found.items()}
