"""IDX files, the format of MNIST and Fashion-MNIST, plain or gzipped.

`train-images-idx3-ubyte` has gray images (N, H, W), `train-images-idx4-ubyte` color images (N, H, W, 3); the files of
the test subset begin with `t10k`. Shapes: N images, H x W pixels.
"""

import gzip
import math
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.images.base import Images, image_record
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.files import atomic_path

FILES = {"train": "train", "test": "t10k"}
MAX_RANK = 4  # dimensions; of color images (N, H, W, 3)
BLOCK = 1 << 20  # bytes read at a time
UINT8 = 8  # IDX type code of unsigned bytes, the only one in MNIST-like sets


def is_idx_folder(path: Path) -> bool:
    """Return whether `path` has an IDX file of training images."""
    return _find_file(path, *_image_files("train")) is not None


class IdxImages(Images):
    """Images of a folder with IDX files, all in memory."""

    def __init__(self, records: list[ClipRecord], arrays: dict[str, NDArray[np.uint8]]) -> None:
        super().__init__(records)
        self._arrays = arrays  # {subset: (N, H, W) or (N, H, W, 3)}

    @classmethod
    def open(cls, path: Path) -> "IdxImages":
        """Read the images and labels of both subsets."""
        records, arrays = [], {}
        for subset, prefix in FILES.items():
            images = read_idx(_require_file(path, *_image_files(prefix)))
            labels = read_idx(_require_file(path, f"{prefix}-labels-idx1-ubyte"))
            is_image = images.ndim == 3 or (images.ndim == 4 and images.shape[3] == 3)
            if not is_image or labels.shape != images.shape[:1]:
                raise ValueError(f"{path}: {prefix} has images of shape {images.shape} and labels {labels.shape}")
            arrays[subset] = images
            size = images.shape[2], images.shape[1]
            records += [
                image_record(subset, f"{number:06d}", label=int(label), class_name=str(label), size=size)
                for number, label in enumerate(labels)
            ]
        return cls(records, arrays)

    def load_image(self, record: ClipRecord) -> NDArray[np.uint8]:
        """Return the image, gray (H, W) or in color (H, W, 3)."""
        subset, _, number = record.video_id.partition("/")
        image: NDArray[np.uint8] = self._arrays[subset][int(number)]
        return image


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes; ValueError if it is another format or truncated."""
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            return _read_array(file, path)
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked: {error}") from None


def _read_array(file: Any, path: Path) -> NDArray[np.uint8]:
    """Read what the header says and no more: a small file can be unpacked to any size."""
    data = file.read(4)
    if len(data) < 4 or data[:2] != b"\0\0" or data[2] != UINT8:
        raise ValueError(f"{path} is not an IDX file of bytes")
    rank = data[3]
    sizes = file.read(4 * rank)
    if not 1 <= rank <= MAX_RANK or len(sizes) != 4 * rank:
        raise ValueError(f"{path} is truncated, or has {rank} dimensions")
    shape = struct.unpack(f">{rank}I", sizes)
    expected = math.prod(shape)
    values = bytearray()
    while block := file.read(min(BLOCK, expected + 1 - len(values))):
        values += block
    if len(values) != expected:
        found = f"{len(values)} bytes" if len(values) < expected else "more bytes"
        raise ValueError(f"{path} is truncated or damaged: its header says {shape}, it has {found} of data")
    return np.frombuffer(values, np.uint8).reshape(shape)


def write_idx(path: Path, array: NDArray[np.uint8]) -> None:
    """Write bytes of any shape as an IDX file, gzipped if the name ends in `.gz`."""
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, UINT8, array.ndim, *array.shape)
    data = header + np.ascontiguousarray(array).tobytes()
    with atomic_path(path) as temporary:
        temporary.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)


def _image_files(prefix: str) -> tuple[str, str]:
    return f"{prefix}-images-idx3-ubyte", f"{prefix}-images-idx4-ubyte"


def _find_file(path: Path, *names: str) -> Path | None:
    # torchvision keeps the archive next to the unpacked file; read either
    files = (path / file for name in names for file in (name, f"{name}.gz"))
    return next((file for file in files if file.is_file()), None)


def _require_file(path: Path, *names: str) -> Path:
    found = _find_file(path, *names)
    if found is None:
        raise FileNotFoundError(f"no {' or '.join(names)}, plain or .gz, in {path}")
    return found
