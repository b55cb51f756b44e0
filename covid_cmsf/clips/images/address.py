"""Addresses of image sets, wherever clips are named: a path or a set of torchvision, with options.

/data/imagenet                                  folders train/ and val/, a folder for each class in them
/data/imagenet?classes=cmc100                   only some of the classes (classes.py)
/data/fashion-mnist?per_class=1000              IDX files; the first 1000 training images of each class
torchvision:CIFAR10?root=/data                  any set of torchvision
torchvision:CIFAR10?root=/data&download=true
"""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

from covid_cmsf.clips.images.classes import first_of_each_class, only_classes
from covid_cmsf.clips.images.folder import ImageFolder, is_image_folder
from covid_cmsf.clips.images.idx import IdxImages, is_idx_folder
from covid_cmsf.clips.images.images import Images
from covid_cmsf.clips.images.torchvision_sets import TorchvisionImages

PREFIX = "torchvision:"
OPTIONS = {"torchvision": ("root", "download", "classes", "per_class"), "path": ("classes", "per_class")}


@dataclass(frozen=True)
class Address:
    """`place` is a path, or the name of a set of torchvision."""

    place: str
    of_torchvision: bool = False
    options: dict[str, str] = field(default_factory=dict)


def parse_address(text: str) -> Address:
    """The parts of an address; ValueError names an option that does not exist."""
    place, _, query = text.partition("?")
    of_torchvision = place.startswith(PREFIX)
    options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    accepted = OPTIONS["torchvision" if of_torchvision else "path"]
    for name in options:
        if name not in accepted:
            raise ValueError(f"{text}: unknown option {name!r}; there are {', '.join(accepted)}")
    return Address(place.removeprefix(PREFIX), of_torchvision, options)


def is_image_address(text: str) -> bool:
    """Whether `open_images` is to open it: by its form, or by what lies there."""
    path = Path(text)
    if text.startswith(PREFIX) or ("?" in text and not path.exists()):  # a folder may have a question mark in its name
        return True
    return path.is_dir() and (is_idx_folder(path) or is_image_folder(path))


def open_images(text: str) -> Images:
    """The images at an address."""
    address = parse_address(text)
    if address.of_torchvision:
        root = address.options.get("root")
        if not root:
            raise ValueError(f"{text}: say where its files are: {PREFIX}{address.place}?root=/data")
        images: Images = TorchvisionImages.open(address.place, root, download=_truth(address.options, text))
    else:
        images = _at_path(Path(address.place))
    records = images.records
    if wanted := address.options.get("classes"):
        records = only_classes(records, wanted)
    if (count := address.options.get("per_class")) is not None:
        if not count.isdigit() or int(count) < 1:
            raise ValueError(f"{text}: per_class = {count!r}; a number of images is needed")
        records = first_of_each_class(records, int(count))
    images.keep_(records)
    return images


def _at_path(path: Path) -> Images:
    if not path.exists():
        raise FileNotFoundError(f"no images at {path}")
    return IdxImages.open(path) if is_idx_folder(path) else ImageFolder.open(path)


def _truth(options: dict[str, str], text: str) -> bool:
    value = options.get("download", "false")
    if value not in ("true", "false"):
        raise ValueError(f"{text}: download = {value!r}; true or false")
    return value == "true"
