"""SUN397, split 1. torchvision knows the images but no split, so the official lists are read: 50 + 50 a class."""

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
from covid_cmsf.files import file_sha256

LIST_FILES = {"train": "Training_01.txt", "test": "Testing_01.txt"}
LISTS_URL = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"


class ListedImages:
    """Images of a list. A file that is missing is an error when it is read, not before: its row stays visible."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], classes: Sequence[str]) -> None:
        self.files, self.labels, self.classes = list(files), list(labels), list(classes)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with Image.open(self.files[index]) as image:
            return image.convert("RGB"), self.labels[index]


def open_sun397(root: Path) -> dict[str, ListedImages]:
    """The pieces train and test of split 1; FileNotFoundError says which list is missing and where it comes from."""
    folder = root / "SUN397"
    names = folder / "ClassName.txt"
    if not names.is_file():
        raise FileNotFoundError(f"no file {names}; it is subset of SUN397.tar.gz")
    classes = [line.strip() for line in names.read_text().splitlines() if line.strip()]  # /a/abbey
    lists = {source_split: _find_list(root, name) for source_split, name in LIST_FILES.items()}
    return {source_split: _read_list(folder, path, classes) for source_split, path in lists.items()}


def _find_list(root: Path, name: str) -> Path:
    """Beside the classes, beside the folder, or in `Partitions` at either place."""
    folders = [root / "SUN397", root / "SUN397" / "Partitions", root, root / "Partitions"]
    for candidate in folders:
        if (candidate / name).is_file():
            return candidate / name
    raise FileNotFoundError(
        f"no file {name} in {', '.join(map(str, folders))}; the official lists of split 1 are in {LISTS_URL}"
    )


def _read_list(folder: Path, path: Path, classes: Sequence[str]) -> ListedImages:
    """Lines are /a/abbey/sun_aaalbzqrimafwbiv.jpg; the class is the path without the file."""
    label_of = {name: number for number, name in enumerate(classes)}
    files, labels = [], []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        name = line.strip().rpartition("/")[0]
        if name not in label_of:
            raise ValueError(f"{path}, line {number}: {line.strip()!r} is in no class of ClassName.txt")
        files.append(folder / line.strip().lstrip("/"))
        labels.append(label_of[name])
    return ListedImages(files, labels, [name.lstrip("/").partition("/")[2] for name in classes])


# Images of a torchvision data set as clips of one frame, so that everything that reads clips reads them.

# H W pixels


class DatasetImages(Images):
    """One record an image: `train/000012` is image 12 of the piece `train`. Its split is called "1".

    `pieces`: for each name something that gives (PIL image, label) by number. `labels`: the labels of each piece, known
    without reading pictures. `files`: where given, the picture of every number; its bytes are hashed, so that features
    of other pictures under the same name are noticed. Worker processes get a pickled copy.
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
        """(H, W, 3). ValueError or OSError if it is damaged."""
        source_split, number = record.video_id.split("/")
        try:
            return np.asarray(self._source_splits[source_split][int(number)][0].convert("RGB"))
        except (SyntaxError, Image.DecompressionBombError) as error:  # what Pillow says of broken and of absurd files
            raise ValueError(f"{record.video_id}: {error}") from None

    def sizes(self) -> dict[str, int]:
        """How many images each subset has."""
        subsets = list(self.splits[SPLIT].values())
        return {subset: subsets.count(subset) for subset in sorted(set(subsets))}


# Opening the ten data sets where torchvision keeps them, or a folder of the user's own with train/, val/ and test/.


@dataclass(frozen=True)
class OpenedDataset:
    """`differences`: where its subsets do not have the sizes of Table A2. `column` heads it in the table."""

    name: str
    column: str
    metric: Metric
    images: DatasetImages
    differences: tuple[str, ...] = ()


def open_datasets(names: Sequence[str], root: Path, *, seed: int = 0, download: bool = False) -> list[OpenedDataset]:
    """All of them, or one error that names every one that cannot be opened and why."""
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
    opened_names = [one.name for one in opened]
    if duplicates := sorted({name for name in opened_names if opened_names.count(name) > 1}):
        raise ValueError(f"two data sets are called {', '.join(duplicates)}; results need one folder each")
    return opened


def is_path(name: str) -> bool:
    """Whether this means a folder of the user's own."""
    return "/" in name or "\\" in name


def open_torchvision(dataset: TransferDataset, root: Path, seed: int = 0, download: bool = False) -> OpenedDataset:
    """One of the ten below `root`, cut into train, val and test."""
    if not root.is_dir():
        raise NotADirectoryError(f"no folder {root} with the data sets; --root names it")
    if not download and not (root / dataset.folder).is_dir():
        raise FileNotFoundError(
            f"{dataset.name}: no folder {root / dataset.folder} (with {dataset.contents}){_download_hint(dataset)}"
        )
    if ".mat" in dataset.contents and find_spec("scipy") is None:
        raise ValueError(f"{dataset.name}: torchvision needs SciPy for its .mat files: pip install scipy")
    try:
        source_splits = _source_splits(dataset, root, download)
    except (RuntimeError, FileNotFoundError) as error:  # torchvision says RuntimeError when files are missing
        message = str(error).split(" You can use download=True")[0] + ("" if download else _download_hint(dataset))
        raise FileNotFoundError(
            f"{dataset.name}: {root / dataset.folder} is not whole (it needs {dataset.contents}): {message}"
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
    """Pictures in <subset>/<class>/; the metric is top-1."""
    for subset in SUBSETS:
        if not (folder / subset).is_dir():
            raise FileNotFoundError(f"no folder {folder / subset}; a data set of your own needs {', '.join(SUBSETS)}")
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
    """What torchvision hands out, by the name of the piece."""
    dataset_class = getattr(torchvision_datasets, dataset.torchvision)
    if dataset.name == "sun397":
        if download:
            dataset_class(root, download=True)
        return dict(open_sun397(root))
    if dataset.name == "caltech101":
        if download:
            dataset_class(root, download=True)
        # torchvision's class leaves the background out; Table A2 counts its folder (see `datasets`).
        return {"all": ImageFolder(root / dataset.folder / "101_ObjectCategories")}
    return {
        source_split: dataset_class(root, **arguments, download=download)
        for source_split, arguments in dataset.source_splits.items()
    }


def _class_names(name: str, source_splits: dict[str, Any]) -> list[str]:
    """The class names; ValueError unless all pieces number the same classes alike."""
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
    """A label, or a pair of path and label (Cars)."""
    return int(entry[1] if isinstance(entry, tuple) else entry)


def _download_hint(dataset: TransferDataset) -> str:
    if dataset.name == "cars":
        return "; its first home on the web is gone, so it cannot be downloaded from here"
    return "; --download fetches it"
