"""IDX files, the format of MNIST and Fashion-MNIST: `train-images-idx3-ubyte`, plain or gzipped.

Shapes: N images, H x W pixels.
"""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.images.base import Images, image_record
from covid_cmsf.clips.records import ClipRecord

FILES = {"train": "train", "test": "t10k"}
UINT8 = 8  # IDX type code of unsigned bytes, the only one in MNIST-like sets


def is_idx_folder(path: Path) -> bool:
    """Return whether `path` has an IDX file of training images."""
    return _find_file(path, "train-images-idx3-ubyte") is not None


class IdxImages(Images):
    """Images of a folder with IDX files, all in memory."""

    def __init__(self, records: list[ClipRecord], arrays: dict[str, NDArray[np.uint8]]) -> None:
        super().__init__(records)
        self._arrays = arrays  # {subset: (N, H, W)}

    @classmethod
    def open(cls, path: Path) -> "IdxImages":
        """Read the images and labels of both subsets."""
        records, arrays = [], {}
        for subset, prefix in FILES.items():
            images = read_idx(_require_file(path, f"{prefix}-images-idx3-ubyte"))
            labels = read_idx(_require_file(path, f"{prefix}-labels-idx1-ubyte"))
            if images.ndim != 3 or labels.shape != images.shape[:1]:
                raise ValueError(f"{path}: {prefix} has images of shape {images.shape} and labels {labels.shape}")
            arrays[subset] = images
            size = images.shape[2], images.shape[1]
            records += [
                image_record(subset, f"{number:06d}", label=int(label), class_name=str(label), size=size)
                for number, label in enumerate(labels)
            ]
        return cls(records, arrays)

    def load_image(self, record: ClipRecord) -> NDArray[np.uint8]:
        """Return the gray image (H, W)."""
        subset, _, number = record.video_id.partition("/")
        image: NDArray[np.uint8] = self._arrays[subset][int(number)]
        return image


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes; ValueError if it is another format or truncated."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}") from None
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UINT8:
        raise ValueError(f"{path} is not an IDX file of bytes")
    rank = data[3]
    offset = 4 + 4 * rank
    shape = struct.unpack(f">{rank}I", data[4:offset]) if len(data) >= offset else ()
    if len(shape) != rank or len(data) - offset != int(np.prod(shape)):
        raise ValueError(f"{path} is truncated: its header says {shape}, it has {len(data) - offset} bytes of data")
    return np.frombuffer(data, np.uint8, offset=offset).reshape(shape)


def _find_file(path: Path, name: str) -> Path | None:
    # torchvision keeps the archive next to the unpacked file; read either
    return next((path / file for file in (name, f"{name}.gz") if (path / file).is_file()), None)


def _require_file(path: Path, name: str) -> Path:
    found = _find_file(path, name)
    if found is None:
        raise FileNotFoundError(f"no {name} or {name}.gz in {path}")
    return found
