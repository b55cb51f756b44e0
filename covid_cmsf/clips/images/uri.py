"""URIs of image sets, accepted wherever clips are: a path or a torchvision data set, with options.

/data/imagenet                                  folders train/ and val/ with one folder per class
/data/imagenet?classes=cmc100                   only the classes of a list (see classes.py)
/data/fashion-mnist?per_class=1000              IDX files; the first 1000 training images of each class
torchvision:CIFAR10?root=/data                  a data set of torchvision (see SAFE_DATASETS)
torchvision:CIFAR10?root=/data&download=true
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl

from covid_cmsf.clips.images.base import Images
from covid_cmsf.clips.images.classes import limit_per_class, select_classes
from covid_cmsf.clips.images.folder import ImageFolder, is_image_folder
from covid_cmsf.clips.images.idx import IdxImages, is_idx_folder
from covid_cmsf.clips.images.torchvision import TorchvisionImages

PREFIX = "torchvision:"
OPTIONS = {"torchvision": ("root", "download", "classes", "per_class"), "path": ("classes", "per_class")}


@dataclass(frozen=True)
class ImageUri:
    """`location` is a path, or the name of a torchvision data set."""

    location: str
    is_torchvision: bool = False
    options: dict[str, str] = field(default_factory=dict)


def parse_uri(text: str) -> ImageUri:
    """Parse a URI; ValueError if it has an unknown option."""
    location, _, query = text.partition("?")
    is_torchvision = location.startswith(PREFIX)
    options = parse_options(text, query, OPTIONS["torchvision" if is_torchvision else "path"])
    return ImageUri(location.removeprefix(PREFIX), is_torchvision, options)


def parse_options(text: str, query: str, accepted: Sequence[str]) -> dict[str, str]:
    """Return the options of an address `text`, given what follows its `?`; ValueError if one is not accepted."""
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise ValueError(f"{text}: ?{query} is not of the form ?name=value&name=value") from None
    for name in options:
        if name not in accepted:
            raise ValueError(f"{text}: unknown option {name!r}; choose from {', '.join(accepted)}")
    return options


def is_image_uri(text: str) -> bool:
    """Return whether `open_images` can open `text`: it has a URI's form, or is a folder of images."""
    path = Path(text)
    if text.startswith(PREFIX) or ("?" in text and not path.exists()):  # a folder's name may have a question mark
        return True
    return path.is_dir() and (is_idx_folder(path) or is_image_folder(path))


def open_images(text: str) -> Images:
    """Open the image set of a URI and apply its options."""
    uri = parse_uri(text)
    if uri.is_torchvision:
        root = uri.options.get("root")
        if not root:
            raise ValueError(f"{text}: root is missing, for example {PREFIX}{uri.location}?root=/data")
        images: Images = TorchvisionImages.open(uri.location, root, download=_parse_download(uri.options, text))
    else:
        images = _open_path(Path(uri.location))
    records = images.records
    if class_list_name := uri.options.get("classes"):
        records = select_classes(records, class_list_name)
    if (limit := uri.options.get("per_class")) is not None:
        if not limit.isdigit() or int(limit) < 1:
            raise ValueError(f"{text}: per_class = {limit!r}; it must be a whole number of at least 1")
        records = limit_per_class(records, int(limit))
    images.filter_(records)
    return images


def _open_path(path: Path) -> Images:
    if not path.exists():
        raise FileNotFoundError(f"no images at {path}")
    return IdxImages.open(path) if is_idx_folder(path) else ImageFolder.open(path)


def _parse_download(options: dict[str, str], text: str) -> bool:
    value = options.get("download", "false")
    if value not in ("true", "false"):
        raise ValueError(f"{text}: download = {value!r}; it must be true or false")
    return value == "true"
