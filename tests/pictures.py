"""Sets of small images for tests: folders of PNG files, IDX files. Classes differ in color and in a bar."""

import gzip
import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def picture(label: int, number: int, *, size: int = 20) -> NDArray[np.uint8]:
    """(size, size, 3) noise with the class's color and bar."""
    rng = np.random.default_rng([label, number])
    image = rng.integers(0, 60, (size, size, 3))
    image[..., label % 3] += 90
    image[:, (4 * label + 2) % size] += 60
    return image.astype(np.uint8)


def make_image_folder(root: Path, *, classes: int = 3, train: int = 8, test: int = 3, test_name: str = "val") -> Path:
    """`root/train/class0/0.png` and so on; returns root."""
    for part, count, first in (("train", train, 0), (test_name, test, 1000)):
        for label in range(classes):
            folder = root / part / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                Image.fromarray(picture(label, first + number)).save(folder / f"{part}_{label}_{number}.png")
    return root


def write_idx(path: Path, values: NDArray[np.uint8]) -> None:
    """An IDX file of bytes, gzipped when its name says so."""
    data = bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def make_idx_folder(root: Path, *, classes: int = 3, train: int = 8, test: int = 3, suffix: str = ".gz") -> Path:
    """Gray images of both parts; returns root."""
    root.mkdir(parents=True, exist_ok=True)
    for name, count, first in (("train", train, 0), ("t10k", test, 1000)):
        labels = np.arange(classes * count) % classes
        images = np.stack([picture(int(label), first + i)[..., 0] for i, label in enumerate(labels)])
        write_idx(root / f"{name}-images-idx3-ubyte{suffix}", images)
        write_idx(root / f"{name}-labels-idx1-ubyte{suffix}", labels.astype(np.uint8))
    return root
