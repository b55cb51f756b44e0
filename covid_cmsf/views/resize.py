"""How other libraries prepare frames: resize the whole frame, then take its center square.

Encoders of this package take the square first and resize it, bilinear and antialiased (`ops.crop_resize`). The order
matters: the square begins at whole pixels of the resized frame, not of the stored one. On real clips the features of
an image network differ by a cosine of 0.96 to 0.99 if this or the interpolation is another one.
"""

# T frames, C channels, H W pixels

from typing import Literal

from pydantic import Field
from torch import Tensor

from covid_cmsf.config import Config
from covid_cmsf.views.ops import interpolate
from covid_cmsf.views.presets import Augmentation

Interpolation = Literal["bilinear", "bicubic"]


class Resize(Config):
    """The interpolation of a library, and the shape that it gives to frames before it takes their center square."""

    interpolation: Interpolation = "bilinear"
    antialias: bool = True
    aspect: float | None = Field(default=None, gt=0)  # width over height of every resized frame; None: kept
    floor: bool = False  # where the square would begin at half a pixel: before it; else at the even one

    def apply(self, frames: Tensor, crop: Augmentation) -> tuple[Tensor, Augmentation]:
        """Resize uint8 frames (T, C, H, W); return them and the center crop that takes `crop.size` pixels of them."""
        assert crop.center is not None, "libraries take the center"
        size, short_edge = crop.size, round(crop.size / crop.center)
        height, width = frames.shape[-2:]
        if self.aspect is not None:
            shape = short_edge, round(short_edge * self.aspect)
        elif height <= width:
            shape = short_edge, int(short_edge * width / height)
        else:
            shape = int(short_edge * height / width), short_edge
        resized = interpolate(frames, shape, interpolation=self.interpolation, antialias=self.antialias)
        (top, bottom), (left, right) = (self._span(length, size) for length in shape)
        shape = bottom - top, right - left
        return resized[..., top:bottom, left:right], crop.model_copy(update={"center": size / min(shape)})

    def _span(self, length: int, size: int) -> tuple[int, int]:
        """Return the rows or columns to keep: all, or one less, so that the center square begins at a whole pixel."""
        before, odd = divmod(length - size, 2)
        if not odd:
            return 0, length
        return (0, length - 1) if self.floor or before % 2 == 0 else (1, length)
