"""Decode JPEG frames with OpenCV."""

import cv2
import numpy as np
from numpy.typing import NDArray


def decode_rgb(data: bytes, location: str) -> NDArray[np.uint8]:
    """Decode to RGB (H, W, 3); `location` names the image in errors."""
    return np.ascontiguousarray(_decode(data, cv2.IMREAD_COLOR, location)[..., ::-1])


def decode_gray(data: bytes, location: str) -> NDArray[np.uint8]:
    """Decode to gray (H, W); `location` names the image in errors."""
    return _decode(data, cv2.IMREAD_GRAYSCALE, location)


def _decode(data: bytes, flags: int, location: str) -> NDArray[np.uint8]:
    image: NDArray[np.uint8] | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags) if data else None
    if image is None:
        raise ValueError(f"{location} is not a readable JPEG")
    return image
