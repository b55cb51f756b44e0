"""SUN397, split 1. torchvision knows the images but no split, so the official lists are read: 50 + 50 a class."""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image

LISTS = {"train": "Training_01.txt", "test": "Testing_01.txt"}
ORIGIN = "https://vision.princeton.edu/projects/2010/SUN/download/Partitions.zip"


class ListedImages:
    """Images of a list. A file that is missing is an error when it is read, not before: its row stays visible."""

    def __init__(self, files: Sequence[Path], labels: Sequence[int], classes: Sequence[str]) -> None:
        self.files, self.labels, self.classes = list(files), list(labels), list(classes)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Image.Image, int]:
        with Image.open(self.files[index]) as picture:
            return picture.convert("RGB"), self.labels[index]


def open_sun397(root: Path) -> dict[str, ListedImages]:
    """The pieces train and test of split 1; FileNotFoundError says which list is missing and where it comes from."""
    folder = root / "SUN397"
    names = folder / "ClassName.txt"
    if not names.is_file():
        raise FileNotFoundError(f"no file {names}; it is part of SUN397.tar.gz")
    classes = [line.strip() for line in names.read_text().splitlines() if line.strip()]  # /a/abbey
    lists = {piece: _find_list(root, name) for piece, name in LISTS.items()}
    return {piece: _listed(folder, path, classes) for piece, path in lists.items()}


def _find_list(root: Path, name: str) -> Path:
    """Beside the classes, beside the folder, or in `Partitions` at either place."""
    places = [root / "SUN397", root / "SUN397" / "Partitions", root, root / "Partitions"]
    for place in places:
        if (place / name).is_file():
            return place / name
    raise FileNotFoundError(
        f"no file {name} in {', '.join(map(str, places))}; the official lists of split 1 are in {ORIGIN}"
    )


def _listed(folder: Path, path: Path, classes: Sequence[str]) -> ListedImages:
    """Lines are /a/abbey/sun_aaalbzqrimafwbiv.jpg; the class is the path without the file."""
    numbers = {name: number for number, name in enumerate(classes)}
    files, labels = [], []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        if not line.strip():
            continue
        name = line.strip().rpartition("/")[0]
        if name not in numbers:
            raise ValueError(f"{path}, line {number}: {line.strip()!r} is in no class of ClassName.txt")
        files.append(folder / line.strip().lstrip("/"))
        labels.append(numbers[name])
    return ListedImages(files, labels, [name.lstrip("/").partition("/")[2] for name in classes])
