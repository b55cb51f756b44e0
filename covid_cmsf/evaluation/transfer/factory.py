"""Open the ten data sets of Table A2 from torchvision's folders, or a folder with train/, val/ and test/.

Images are clips of one frame, so that everything that reads clips reads them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torchvision import datasets as torchvision_datasets
from torchvision.datasets import ImageFolder

from covid_cmsf.clips.images.base import SPLIT, Images, image_record
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.evaluation.transfer.datasets import (
    DATASETS,
    SUBSETS,
    Metric,
    SplitRule,
    TransferDataset,
    size_differences,
    split_images,
)
from covid_cmsf.files import file_sha256, read_text

LIST_FILES = {"train": "Training_01.txt", "test": "Testing_01.txt"}
LISTS_URL = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"


class ListedImages:
    """Images of a list of files; a missing file is an error when it is read, so that it is reported as skipped."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], classes: Sequence[str]) -> None:
        self.files, self.labels, self.classes = list(files), list(labels), list(classes)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with Image.open(self.files[index]) as image:
            return image.convert("RGB"), self.labels[index]


def open_sun397(root: Path) -> dict[str, ListedImages]:
    """Open train and test of SUN397, split 1, from its official lists (50 + 50 images per class).

    torchvision has no split of SUN397.
    """
    folder = root / "SUN397"
    names = folder / "ClassName.txt"
    if not names.is_file():
        raise FileNotFoundError(f"there is no file {names}; it is part of SUN397.tar.gz")
    classes = [line.strip() for line in read_text(names).splitlines() if line.strip()]  # /a/abbey
    lists = {source_split: _find_list(root, name) for source_split, name in LIST_FILES.items()}
    return {source_split: _read_list(folder, path, classes) for source_split, path in lists.items()}


def _find_list(root: Path, name: str) -> Path:
    """Find a list in SUN397/ or `root`, or in the folder `Partitions` of either."""
    folders = [root / "SUN397", root / "SUN397" / "Partitions", root, root / "Partitions"]
    for candidate in folders:
        if (candidate / name).is_file():
            return candidate / name
    raise FileNotFoundError(
        f"no file {name} in {', '.join(map(str, folders))}; the official lists of split 1 are in {LISTS_URL}"
    )


def _read_list(folder: Path, path: Path, classes: Sequence[str]) -> ListedImages:
    """Read lines such as /a/abbey/sun_aaalbzqrimafwbiv.jpg; the class is the path without the file."""
    label_of = {name: number for number, name in enumerate(classes)}
    files, labels = [], []
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        name = line.strip().rpartition("/")[0]
        if name not in label_of:
            raise ValueError(f"{path}, line {number}: {line.strip()!r} is in no class of ClassName.txt")
        files.append(folder / line.strip().lstrip("/"))
        labels.append(label_of[name])
    return ListedImages(files, labels, [name.lstrip("/").partition("/")[2] for name in classes])


class DatasetImages(Images):
    """Images of a torchvision data set, with one split named "1".

    The id `train/000012` is image 12 of the source split `train`. Worker processes get a pickled copy.

    Args:
        source_splits: {name: data set that maps an index to (PIL image, label)}.
        labels: {name: labels}, known without reading images.
        files: {name: paths}; if given, files are hashed, so that a changed image changes the fingerprint of the clips.
    """

    def __init__(
        self,
        source_splits: Mapping[str, Any],
        labels: Mapping[str, Sequence[int]],
        class_names: Sequence[str],
        rule: SplitRule,
        *,
        seed: int = 0,
        files: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        self._source_splits = dict(source_splits)
        records = []
        for source_split, split_labels in labels.items():
            if len(split_labels) != len(source_splits[source_split]):
                raise ValueError(
                    f"{source_split} has {len(source_splits[source_split])} images and {len(split_labels)} labels"
                )
            for index, label in enumerate(split_labels):
                if not 0 <= label < len(class_names):
                    raise ValueError(
                        f"image {index} of {source_split} has label {label}; there are {len(class_names)} classes"
                    )
                record = image_record(
                    source_split, f"{index:06d}", label=int(label), class_name=str(class_names[label])
                )
                digest = file_sha256(Path(files[source_split][index])) if files is not None else ""
                records.append(replace(record, source_sha256=digest))
        super().__init__(records)
        ids = [record.video_id for record in records]
        source_split_names = [image.split("/")[0] for image in ids]
        self.splits = {
            SPLIT: split_images(ids, [record.label for record in records], source_split_names, rule, seed=seed)
        }

    def load_image(self, record: ClipRecord) -> NDArray[np.uint8]:
        """Return the image (H, W, 3); ValueError or OSError if it is damaged."""
        source_split, number = record.video_id.split("/")
        try:
            return np.asarray(self._source_splits[source_split][int(number)][0].convert("RGB"))
        except (SyntaxError, Image.DecompressionBombError) as error:  # Pillow, for broken and for huge files
            raise ValueError(f"{record.video_id}: {error}") from None

    def sizes(self) -> dict[str, int]:
        """Return {subset: number of images}."""
        subsets = list(self.splits[SPLIT].values())
        return {subset: subsets.count(subset) for subset in sorted(set(subsets))}


@dataclass(frozen=True)
class OpenedDataset:
    """A data set with its metric; `differences` describes subsets whose sizes differ from Table A2."""

    name: str
    column: str
    metric: Metric
    images: DatasetImages
    differences: tuple[str, ...] = ()


def open_datasets(names: Sequence[str], root: Path, *, seed: int = 0, download: bool = False) -> list[OpenedDataset]:
    """Open all data sets; FileNotFoundError names every one that cannot be opened, with the reason."""
    errors: list[str] = []
    opened: list[OpenedDataset] = []
    for name in names:
        if name not in DATASETS and not is_path(name):
            choices = f"choose from {', '.join(DATASETS)}, or give a folder with train/, val/, test/"
            raise ValueError(f"unknown data set {name!r}; {choices}")
    for name in names:
        try:
            found = open_folder(Path(name)) if is_path(name) else open_torchvision(DATASETS[name], root, seed, download)
            opened.append(found)
        except (FileNotFoundError, NotADirectoryError) as error:
            errors.append(str(error))
    if errors:
        raise FileNotFoundError("; ".join(errors))
    check_names(opened)
    return opened


def check_names(opened: Sequence[OpenedDataset]) -> None:
    """Raise ValueError if two data sets have the same name."""
    opened_names = [one.name for one in opened]
    if duplicates := sorted({name for name in opened_names if opened_names.count(name) > 1}):
        raise ValueError(f"data sets with the same name: {', '.join(duplicates)}; results need one folder each")


def is_path(name: str) -> bool:
    """Whether `name` is a folder rather than the name of a data set."""
    return "/" in name or "\\" in name


def open_torchvision(dataset: TransferDataset, root: Path, seed: int = 0, download: bool = False) -> OpenedDataset:
    """Open one of the ten data sets below `root`, split into train, val and test."""
    if not root.is_dir():
        raise NotADirectoryError(f"there is no folder {root}; --root is the folder of the data sets")
    if not download and not (root / dataset.folder).is_dir():
        raise FileNotFoundError(
            f"{dataset.name}: no folder {root / dataset.folder} (with {dataset.contents}){_download_hint(dataset)}"
        )
    if ".mat" in dataset.contents and find_spec("scipy") is None:
        raise ValueError(f"{dataset.name}: torchvision needs SciPy for its .mat files: pip install scipy")
    try:
        source_splits = _source_splits(dataset, root, download)
    except (RuntimeError, FileNotFoundError) as error:  # torchvision raises RuntimeError for missing files
        message = str(error).split(" You can use download=True")[0] + ("" if download else _download_hint(dataset))
        raise FileNotFoundError(
            f"{dataset.name}: {root / dataset.folder} is incomplete (it needs {dataset.contents}): {message}"
        ) from None
    classes = _class_names(dataset.name, source_splits)
    labels = {
        source_split: [_label(entry) for entry in getattr(data, dataset.labels)]
        for source_split, data in source_splits.items()
    }
    images = DatasetImages(source_splits, labels, classes, dataset.rule, seed=seed)
    return OpenedDataset(
        dataset.name, dataset.column, dataset.metric, images, tuple(size_differences(dataset, images.sizes()))
    )


def open_folder(folder: Path) -> OpenedDataset:
    """Open images in <subset>/<class>/; the metric is top-1."""
    for subset in SUBSETS:
        if not (folder / subset).is_dir():
            raise FileNotFoundError(f"no folder {folder / subset}; a folder of images needs {', '.join(SUBSETS)}")
    source_splits = {subset: ImageFolder(folder / subset) for subset in SUBSETS}
    labels = {subset: data.targets for subset, data in source_splits.items()}
    files = {subset: [path for path, _ in data.samples] for subset, data in source_splits.items()}
    images = DatasetImages(
        source_splits, labels, _class_names(str(folder), source_splits), SplitRule(None), files=files
    )
    name = folder.resolve().name
    if name in DATASETS:
        raise ValueError(f"the folder {folder} has the name of one of the ten data sets; rename it")
    return OpenedDataset(name, name, "top1", images)


def _source_splits(dataset: TransferDataset, root: Path, download: bool) -> dict[str, Any]:
    """Return {name: data set} as torchvision splits it."""
    dataset_class = getattr(torchvision_datasets, dataset.torchvision)
    if dataset.name == "sun397":
        if download:
            dataset_class(root, download=True)
        return dict(open_sun397(root))
    if dataset.name == "caltech101":
        if download:
            dataset_class(root, download=True)
        # torchvision's class omits the background folder; Table A2 counts it (see `datasets`).
        return {"all": ImageFolder(root / dataset.folder / "101_ObjectCategories")}
    return {
        source_split: dataset_class(root, **arguments, download=download)
        for source_split, arguments in dataset.source_splits.items()
    }


def _class_names(name: str, source_splits: dict[str, Any]) -> list[str]:
    """Return the class names; ValueError unless they are the same in all source splits."""
    lists = {source_split: [str(one) for one in data.classes] for source_split, data in source_splits.items()}
    first, *others = lists
    for other in others:
        if lists[other] != lists[first]:
            differing = sorted(set(lists[first]) ^ set(lists[other]))
            detail = (
                ", ".join(differing[:5]) + (" ..." if len(differing) > 5 else "") if differing else "in another order"
            )
            raise ValueError(f"{name}: {first} and {other} do not have the same classes: {detail}")
    return lists[first]


def _label(entry: Any) -> int:
    """Return the label of an entry: a label, or a pair of path and label (Cars)."""
    return int(entry[1] if isinstance(entry, tuple) else entry)


def _download_hint(dataset: TransferDataset) -> str:
    if dataset.name == "cars":
        return "; its original website is gone, so it cannot be downloaded"
    return "; --download downloads it"
