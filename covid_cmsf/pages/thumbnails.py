"""Thumbnails: a few frames from the middle of a clip as an animated WebP, of RGB or color-coded flow."""

import hashlib
import io
import logging
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.cuts import describe_content
from covid_cmsf.clips.flow_color import draw_flow
from covid_cmsf.clips.records import FLOW_MODALITIES, ClipRecord
from covid_cmsf.logs import progress_bar

# T frames, H W pixels


SPAN = 32  # frames of the video that a loop covers, about a training clip


@dataclass(frozen=True)
class Style:
    """Resolution of thumbnails: short edge in pixels, number of frames, WebP quality."""

    edge: int
    num_frames: int
    quality: int

    @property
    def name(self) -> str:
        """Name of the folder."""
        return f"{self.edge}px-{self.num_frames}f-q{self.quality}"


STYLES = (Style(64, 8, 50), Style(56, 8, 40), Style(48, 8, 35), Style(48, 6, 25), Style(40, 5, 20))  # finest first


def loop_frames(count: int, num_frames: int, span: int = SPAN) -> list[int]:
    """Return up to `num_frames` frame indices, evenly spaced over the middle `span` of `count` frames."""
    length = min(span, count)
    first = (count - length) // 2
    positions = np.linspace(first, first + length - 1, min(num_frames, length))
    return [int(position) for position in positions.round()]


def thumbnail(
    clips: Clips, record: ClipRecord, modality: str, style: Style, *, window: tuple[int, int] | None = None
) -> bytes:
    """Return the WebP file, of the frames [start, end) of a window or of the middle of the clip.

    Flow has full color at the 99th percentile of the clip's speed.
    """
    count = record.num_flow if modality in FLOW_MODALITIES else record.num_frames
    if window is None:
        numbers = loop_frames(count, style.num_frames)
    else:
        start = max(0, min(window[0], count - 1))
        length = max(1, min(window[1], count) - start)
        numbers = [start + number for number in loop_frames(length, style.num_frames, span=length)]
    frames = clips.read(record, modality, numbers)
    if modality in FLOW_MODALITIES:
        images, _ = draw_flow(frames.numpy(), clips.flow_levels(record))
        pictures = [resize_short_edge(image, style.edge) for image in images]
    else:
        pictures = [resize_short_edge(one.permute(1, 2, 0).numpy(), style.edge) for one in frames]
    seconds = (numbers[-1] - numbers[0] + 1) / (record.fps or 25.0)
    return encode_webp(pictures, style.quality, milliseconds=max(40, round(1000 * seconds / len(pictures))))


def resize_short_edge(pixels: NDArray[np.uint8], edge: int) -> Image.Image:
    """Resize (H, W, 3) to a short edge of at most `edge` pixels."""
    height, width = pixels.shape[:2]
    factor = min(1.0, edge / min(height, width))
    size = max(1, round(width * factor)), max(1, round(height * factor))
    picture = Image.fromarray(np.ascontiguousarray(pixels))
    return picture if factor == 1 else picture.resize(size, Image.Resampling.LANCZOS)


def encode_webp(pictures: list[Image.Image], quality: int, *, milliseconds: int = 125) -> bytes:
    """Encode one image, or several as an endless loop."""
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


logger = logging.getLogger(__name__)
NUM_SIZE_SAMPLES = 10  # thumbnails whose mean size estimates the rest
BUDGET_FRACTION = 0.9  # safety margin for that estimate


class ThumbnailKey(NamedTuple):
    """Thumbnail of a video in one modality."""

    clips: str  # path
    video_id: str
    modality: str


@dataclass
class ThumbnailSet:
    """Written thumbnails: `made[key]` is a file name in `folder`; `failures` lists unreadable videos."""

    folder: str
    made: dict[ThumbnailKey, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    num_omitted: int = 0  # beyond the budget


class ClipCollections:
    """Clips by path, opened once; `reasons` has the errors of those that cannot be opened."""

    def __init__(self, override: str | None = None) -> None:
        self.override = override  # replaces every path
        self.reasons: dict[str, str] = {}
        self._clips: dict[str, tuple[Clips, dict[str, ClipRecord]]] = {}

    def get(self, address: str) -> tuple[Clips, dict[str, ClipRecord]] | None:
        """Return the clips and their records by id; None if they cannot be opened."""
        if address not in self._clips and address not in self.reasons:
            try:
                clips = open_clips(self.override or address)
                self._clips[address] = clips, {record.video_id: record for record in clips.records}
            except (ValueError, OSError, ImportError) as error:
                self.reasons[address] = str(error)
        return self._clips.get(address)

    def record(self, wanted: ThumbnailKey) -> ClipRecord | None:
        """Return the video's record; None if there are no frames of the modality."""
        opened = self.get(wanted.clips)
        record = opened[1].get(wanted.video_id) if opened is not None else None
        if opened is None or record is None or wanted.modality not in opened[0].modalities:
            return None
        return record if wanted.modality not in FLOW_MODALITIES or record.num_flow else None


def make_thumbnails(
    wanted: Sequence[ThumbnailKey],
    opened: ClipCollections,
    out: Path,
    *,
    budget: float,
    workers: int = 2,
    style: Style | None = None,
) -> ThumbnailSet:
    """Write thumbnails below `out`, by priority, as fine as `budget` bytes allow; what does not fit is omitted."""
    available = [one for one in dict.fromkeys(wanted) if opened.record(one) is not None]
    if not available:
        return ThumbnailSet("")
    sampled = available[:: max(1, len(available) // NUM_SIZE_SAMPLES)][:NUM_SIZE_SAMPLES]
    style, mean_bytes = choose_style(
        lambda chosen: _mean_size(sampled, opened, chosen), len(available), BUDGET_FRACTION * budget, style
    )
    kept = available[: int(BUDGET_FRACTION * budget / mean_bytes)] if mean_bytes else available
    pictures = ThumbnailSet(style.name, num_omitted=len(available) - len(kept))
    folder = out / style.name
    folder.mkdir(parents=True, exist_ok=True)
    names = {one: file_name(one, opened) for one in kept}
    _remove_others(out, folder, set(names.values()))
    with progress_bar("pictures", len(kept)) as advance, ThreadPoolExecutor(workers) as pool:
        reasons = pool.map(lambda one: _write(one, opened, folder / names[one], style), kept)
        for one, reason in zip(kept, reasons, strict=True):
            advance()
            if reason is None:
                pictures.made[one] = names[one]
            else:
                pictures.failures.append(f"{one.video_id} ({one.modality}): {reason}")
    return pictures


def choose_style(
    mean_size: Callable[[Style], float], count: int, budget: float, style: Style | None = None
) -> tuple[Style, float]:
    """Return the finest style in which `count` thumbnails fit (else the coarsest), and their mean size in bytes."""
    size = 0.0
    for chosen in (style,) if style is not None else STYLES:
        size = mean_size(chosen)
        if size * count <= budget:
            return chosen, size
    return chosen, size


def file_name(wanted: ThumbnailKey, opened: ClipCollections) -> str:
    """Return a file name that is safe for any video id."""
    record = opened.record(wanted)
    assert record is not None
    text = f"{wanted.clips}\n{wanted.video_id}\n{describe_content(record)}"
    return f"{hashlib.sha256(text.encode('utf-8', 'surrogateescape')).hexdigest()[:12]}-{wanted.modality}.webp"


def _mean_size(sampled: Sequence[ThumbnailKey], opened: ClipCollections, style: Style) -> float:
    sizes = [len(data) for one in sampled if (data := _encode(one, opened, style)[0]) is not None]
    return sum(sizes) / len(sizes) if sizes else 0.0


def _encode(wanted: ThumbnailKey, opened: ClipCollections, style: Style) -> tuple[bytes | None, str | None]:
    """Return the file, or the error: an unreadable video does not stop a report."""
    clips, record = opened.get(wanted.clips), opened.record(wanted)
    assert clips is not None and record is not None
    try:
        return thumbnail(clips[0], record, wanted.modality, style), None
    except (ValueError, OSError) as error:
        return None, str(error)


def _write(wanted: ThumbnailKey, opened: ClipCollections, path: Path, style: Style) -> str | None:
    if path.is_file():
        return None
    data, reason = _encode(wanted, opened, style)
    if data is not None:
        temporary = path.with_suffix(".tmp")  # no fsync: a lost thumbnail is made again
        temporary.write_bytes(data)
        temporary.replace(path)
    return reason


def _remove_others(out: Path, folder: Path, names: set[str]) -> None:
    """Remove thumbnails of an earlier report that this one does not use."""
    for other in out.iterdir():
        if other.is_dir() and other != folder and other.name in {style.name for style in STYLES}:
            shutil.rmtree(other)
    for file in folder.glob("*.webp"):
        if file.name not in names:
            file.unlink()
