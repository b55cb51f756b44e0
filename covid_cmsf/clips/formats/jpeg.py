"""Decode JPEG frames with OpenCV."""

import io
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covid_cmsf.clips.images.base import check_size, readable_image
from covid_cmsf.files import check_regular_file


def read_rgb(path: Path) -> NDArray[np.uint8]:
    """Read a file as RGB (H, W, 3)."""
    check_regular_file(path)
    return decode_rgb(path.read_bytes(), str(path))


def read_gray(path: Path) -> NDArray[np.uint8]:
    """Read a file as gray (H, W)."""
    check_regular_file(path)
    return _decode(path.read_bytes(), cv2.IMREAD_GRAYSCALE, str(path))


def decode_rgb(data: bytes, location: str) -> NDArray[np.uint8]:
    """Decode to RGB (H, W, 3); `location` names the image in errors."""
    return np.ascontiguousarray(_decode(data, cv2.IMREAD_COLOR, location)[..., ::-1])


def _decode(data: bytes, flags: int, location: str) -> NDArray[np.uint8]:
    with readable_image(location):
        with Image.open(io.BytesIO(data), formats=["JPEG", "PNG"]) as header:  # reads the header only
            check_size(*header.size)
        image: NDArray[np.uint8] | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
        if image is None:
            raise ValueError("OpenCV can't decode it")
        return image
