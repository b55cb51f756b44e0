"""A clip as a short loop: a few frames of its middle as an animated WebP, in RGB or in the colors of flow."""

# T frames, H W pixels

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covid_cmsf.clips.flow_colors import flow_to_rgb
from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.manifest import ClipRecord

SPAN = 32  # frames of the video that the loop goes over: what a network sees of it
PERCENTILE = 99  # the speed of full color


@dataclass(frozen=True)
class Style:
    """How fine a thumbnail is: short edge in pixels, frames, quality of WebP."""

    edge: int
    num_frames: int
    quality: int

    @property
    def name(self) -> str:
        """Of the folder that holds them."""
        return f"{self.edge}px-{self.num_frames}f-q{self.quality}"


STYLES = (Style(64, 8, 50), Style(56, 8, 40), Style(48, 8, 35), Style(48, 6, 25), Style(40, 5, 20))  # finest first


def loop_frames(count: int, num_frames: int, span: int = SPAN) -> list[int]:
    """Up to `num_frames` numbers, evenly spaced over the middle `span` of `count` frames."""
    length = min(span, count)
    first = (count - length) // 2
    places = np.linspace(first, first + length - 1, min(num_frames, length))
    return [int(place) for place in places.round()]


def thumbnail(clips: Clips, record: ClipRecord, modality: str, style: Style) -> bytes:
    """The WebP file. Full color of flow is the speed that all but a hundredth of the clip stay below."""
    count = record.num_flow if modality == "flow" else record.num_frames
    numbers = loop_frames(count, style.num_frames)
    frames = clips.read(record, modality, numbers)
    if modality == "flow":
        flow = frames.numpy()
        scale = max(1.0, float(np.percentile(np.hypot(flow[:, 0], flow[:, 1]), PERCENTILE)))
        pictures = [small_picture(flow_to_rgb(one, scale), style.edge) for one in flow]
    else:
        pictures = [small_picture(one.permute(1, 2, 0).numpy(), style.edge) for one in frames]
    seconds = (numbers[-1] - numbers[0] + 1) / (record.fps or 25.0)
    return encode(pictures, style.quality, milliseconds=max(40, round(1000 * seconds / len(pictures))))


def small_picture(pixels: NDArray[np.uint8], edge: int) -> Image.Image:
    """(H, W, 3) with its short edge at `edge` pixels; small ones are left as they are."""
    height, width = pixels.shape[:2]
    factor = min(1.0, edge / min(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    return picture if factor == 1 else picture.resize(size, Image.Resampling.LANCZOS)


def encode(pictures: list[Image.Image], quality: int, *, milliseconds: int = 125) -> bytes:
    """One picture is a still, several are a loop without an end."""
    data = io.BytesIO()
    if len(pictures) == 1:
        pictures[0].save(data, format="WEBP", quality=quality, method=4)
    else:
        pictures[0].save(
            data,
            format="WEBP",
            save_all=True,
            append_images=pictures[1:],
            duration=milliseconds,
            loop=0,
            quality=quality,
            method=4,
        )
    return data.getvalue()
