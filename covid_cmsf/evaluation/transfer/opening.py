"""Opening the ten data sets where torchvision keeps them, or a folder of the user's own with train/, val/ and test/."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torchvision import datasets as torchvision_datasets
from torchvision.datasets import ImageFolder

from covid_cmsf.evaluation.transfer.datasets import (
    DATASETS,
    PARTS,
    Metric,
    SplitRule,
    TransferDataset,
    size_differences,
)
from covid_cmsf.evaluation.transfer.images import DatasetImages
from covid_cmsf.evaluation.transfer.sun397 import open_sun397


@dataclass(frozen=True)
class OpenDataset:
    """`differences`: where its parts do not have the sizes of Table A2. `column` heads it in the table."""

    name: str
    column: str
    metric: Metric
    images: DatasetImages
    differences: tuple[str, ...] = ()


def open_datasets(names: Sequence[str], root: Path, *, seed: int = 0, download: bool = False) -> list[OpenDataset]:
    """All of them, or one error that names every one that cannot be opened and why."""
    faults: list[str] = []
    opened: list[OpenDataset] = []
    for name in names:
        if name not in DATASETS and not is_path(name):
            choices = f"choose from {', '.join(DATASETS)}, or give a folder with train/, val/, test/"
            raise ValueError(f"unknown data set {name!r}; {choices}")
    for name in names:
        try:
            found = open_folder(Path(name)) if is_path(name) else open_row(DATASETS[name], root, seed, download)
            opened.append(found)
        except (FileNotFoundError, NotADirectoryError) as error:
            faults.append(str(error))
    if faults:
        raise FileNotFoundError("; ".join(faults))
    known = [one.name for one in opened]
    if twice := sorted({name for name in known if known.count(name) > 1}):
        raise ValueError(f"two data sets are called {', '.join(twice)}; results need one folder each")
    return opened


def is_path(name: str) -> bool:
    """Whether this means a folder of the user's own."""
    return "/" in name or "\\" in name


def open_row(row: TransferDataset, root: Path, seed: int = 0, download: bool = False) -> OpenDataset:
    """One of the ten below `root`, cut into train, val and test."""
    if not root.is_dir():
        raise NotADirectoryError(f"no folder {root} with the data sets; --root names it")
    if not download and not (root / row.folder).is_dir():
        raise FileNotFoundError(f"{row.name}: no folder {root / row.folder} (with {row.holds}){_advice(row)}")
    if ".mat" in row.holds and find_spec("scipy") is None:
        raise ValueError(f"{row.name}: torchvision needs SciPy for its .mat files: pip install scipy")
    try:
        pieces = _pieces(row, root, download)
    except (RuntimeError, FileNotFoundError) as error:  # torchvision says RuntimeError when files are missing
        message = str(error).split(" You can use download=True")[0] + ("" if download else _advice(row))
        raise FileNotFoundError(
            f"{row.name}: {root / row.folder} is not whole (it needs {row.holds}): {message}"
        ) from None
    classes = _classes(row.name, pieces)
    labels = {piece: [_label(entry) for entry in getattr(data, row.labels)] for piece, data in pieces.items()}
    images = DatasetImages(pieces, labels, classes, row.rule, seed=seed)
    return OpenDataset(row.name, row.column, row.metric, images, tuple(size_differences(row, images.sizes())))


def open_folder(folder: Path) -> OpenDataset:
    """Pictures in <part>/<class>/; the metric is top-1."""
    for part in PARTS:
        if not (folder / part).is_dir():
            raise FileNotFoundError(f"no folder {folder / part}; a data set of your own needs {', '.join(PARTS)}")
    pieces = {part: ImageFolder(folder / part) for part in PARTS}
    labels = {part: data.targets for part, data in pieces.items()}
    files = {part: [path for path, _ in data.samples] for part, data in pieces.items()}
    images = DatasetImages(pieces, labels, _classes(str(folder), pieces), SplitRule(None), files=files)
    name = folder.resolve().name
    if name in DATASETS:
        raise ValueError(f"the folder {folder} has the name of one of the ten data sets; rename it")
    return OpenDataset(name, name, "top1", images)


def _pieces(row: TransferDataset, root: Path, download: bool) -> dict[str, Any]:
    """What torchvision hands out, by the name of the piece."""
    factory = getattr(torchvision_datasets, row.torchvision)
    if row.name == "sun397":
        if download:
            factory(root, download=True)
        return dict(open_sun397(root))
    if row.name == "caltech101":
        if download:
            factory(root, download=True)
        # torchvision's class leaves the background out; Table A2 counts its folder (see `datasets`).
        return {"all": ImageFolder(root / row.folder / "101_ObjectCategories")}
    return {piece: factory(root, **arguments, download=download) for piece, arguments in row.pieces.items()}


def _classes(name: str, pieces: dict[str, Any]) -> list[str]:
    """The class names; ValueError unless all pieces number the same classes alike."""
    lists = {piece: [str(one) for one in data.classes] for piece, data in pieces.items()}
    first, *others = lists
    for other in others:
        if lists[other] != lists[first]:
            odd = sorted(set(lists[first]) ^ set(lists[other]))
            words = ", ".join(odd[:5]) + (" ..." if len(odd) > 5 else "") if odd else "in another order"
            raise ValueError(f"{name}: {first} and {other} do not have the same classes: {words}")
    return lists[first]


def _label(entry: Any) -> int:
    """A label, or a pair of path and label (Cars)."""
    return int(entry[1] if isinstance(entry, tuple) else entry)


def _advice(row: TransferDataset) -> str:
    if row.name == "cars":
        return "; its first home on the web is gone, so it cannot be downloaded from here"
    return "; --download fetches it"
