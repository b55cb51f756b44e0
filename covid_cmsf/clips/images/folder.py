"""Image folders: `train/<class>/<image>` and `val/<class>/<image>` (or `test/`), as in ImageNet."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covid_cmsf.clips.images.base import Images, check_size, image_record, readable_image, standard_subset_names
from covid_cmsf.clips.names import check_video_ids
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.files import check_regular_file

SUFFIXES = {".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"}  # torchvision's ImageFolder


def is_image_folder(path: Path) -> bool:
    """Return whether `path` has a folder `train` with an image in a class folder."""
    train = path / "train"
    if not train.is_dir():
        return False
    return next((True for name in _list_folders(train) for _ in _list_images(train / name)), False)


class ImageFolder(Images):
    """Images in class folders. Labels follow the sorted class names, as in torchvision's ImageFolder."""

    def __init__(self, path: Path, records: list[ClipRecord], folders: dict[str, str]) -> None:
        super().__init__(records)
        self.path, self._folder_of_subset = path, folders  # {subset: folder name}

    @classmethod
    def open(cls, path: Path) -> "ImageFolder":
        """List the image files below `path`, without opening them."""
        subsets = standard_subset_names(_list_folders(path))
        if "train" not in subsets.values():
            raise ValueError(f"{path} has no folder train with one folder per class")
        classes = sorted({name for subset in subsets for name in _list_folders(path / subset)})
        labels = {name: label for label, name in enumerate(classes)}
        records = [
            image_record(standard, f"{name}/{file}", label=labels[name], class_name=name)
            for folder, standard in sorted(subsets.items(), key=lambda pair: ("train", "val", "test").index(pair[1]))
            for name in _list_folders(path / folder)
            for file in _list_images(path / folder / name)
        ]
        if not records:
            raise ValueError(f"no images in the class folders below {path}")
        check_video_ids([record.video_id for record in records], path)
        return cls(path, records, {standard: folder for folder, standard in subsets.items()})

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the image's file."""
        subset, _, rest = record.video_id.partition("/")
        return [self.path / self._folder_of_subset[subset] / rest]

    def load_image(self, record: ClipRecord) -> NDArray[np.uint8]:
        """Decode with PIL and convert to RGB (H, W, 3)."""
        (path,) = self.files(record, "rgb")
        check_regular_file(path)
        with readable_image(path), Image.open(path) as image:
            check_size(*image.size)
            return np.asarray(image.convert("RGB"))


def _list_folders(path: Path) -> list[str]:
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())


def _list_images(path: Path) -> Iterator[str]:
    for root, folders, files in os.walk(path):
        folders.sort()
        below = Path(root).relative_to(path)
        yield from ((below / name).as_posix() for name in sorted(files) if Path(name).suffix.lower() in SUFFIXES)
