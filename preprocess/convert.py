"""Convert one video file to its store files, in chunks: memory does not grow with the video's length.

Shapes: N pairs of frames, H x W pixels.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import chain, islice
from pathlib import Path
from typing import Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.decoders import VideoReader, open_video
from covid_cmsf.clips.flow_codec import FlowLevels, stack_components
from covid_cmsf.clips.records import FLOW_MODALITIES, StoreInfo
from covid_cmsf.files import file_sha256
from preprocess.audio import frame_spectra
from preprocess.encode import FLOW_CRF_OFFSET, LOSSLESS, ClipWriter
from preprocess.flow import FlowBackend, to_gray
from preprocess.motion_vectors import MotionReader

CHUNK_SIZE = 16  # frames per batch of the flow backend and per progress message, at most
CHUNK_PIXELS = CHUNK_SIZE * 1920 * 1088  # so that memory does not grow with the frames' size: 4 frames of 4K, 2 of 8K
WHOLE = (0.0, math.inf)  # seconds: no cut
Frame = NDArray[np.uint8]
Flow = NDArray[np.float32]
Number = TypeVar("Number", np.uint8, np.float32)


class StageError(Exception):
    """A video can't be converted; has the stage (open, decode, flow, ...) and the reason."""

    def __init__(self, stage: str, reason: str) -> None:
        super().__init__(stage, reason)
        self.stage, self.reason = stage, reason


@dataclass(frozen=True)
class ClipMetadata:
    """Facts about a converted video, for its row in the manifest."""

    num_frames: int
    num_flow: int
    fps: float
    width: int
    height: int
    source_sha256: str
    source_bytes: int
    source_mtime_ns: int
    flow_bound: float  # 0: that of the store
    header_frames: int  # as many as the file's header promises, for a warning if it is far off; 0: unknown, or a cut
    rgb_bytes: int = 0  # size and hash of the stored files
    flow_bytes: int = 0
    motion_bytes: int = 0
    audio_bytes: int = 0
    rgb_sha256: str = ""
    flow_sha256: str = ""
    motion_sha256: str = ""
    audio_sha256: str = ""


def convert(
    source: Path,
    targets: Mapping[str, Path],
    info: StoreInfo,
    *,
    decoder: str,
    flow: FlowBackend | None,
    cut: tuple[float, float] = WHOLE,
    on_frames: Callable[[int], None] = lambda count: None,
) -> ClipMetadata:
    """Write `targets[modality]` for every modality of the store; StageError if the video can't be converted.

    `cut` has start and end of the part to convert, in seconds. `on_frames` gets the number of frames of each finished
    chunk. OSError (a full disk, for example) is not caught: it is not the video's fault.
    """
    moving = [modality for modality in info.modalities if modality in FLOW_MODALITIES]
    with _open_source(source, decoder) as reader, ExitStack() as open_writers:
        status = source.stat()  # before reading: a change in the meantime is noticed by the next run
        frames = flow_frames(reader, info, cut)
        first = next(frames, None)
        if first is None:
            where = "" if cut == WHOLE else f" from {cut[0]:g} s to {cut[1]:g} s"
            raise StageError("decode", f"the file has no frames{where}")
        width, height = size = stored_size(first.shape[1], first.shape[0], info.short_edge)
        num_frames, fps = 0, stored_fps(reader, info)
        sinks: dict[str, RgbSink | FlowSink | FileSink] = {}
        if "rgb" in info.modalities:
            rgb_writer = ClipWriter(targets["rgb"], fps=fps, width=width, height=height, crf=info.quality)
            sinks["rgb"] = RgbSink(open_writers.enter_context(rgb_writer), size)
        if info.audio is not None:
            picture = {"width": info.audio.columns, "height": info.audio.num_mels, "crf": LOSSLESS}
            writer = open_writers.enter_context(ClipWriter(targets["audio"], fps=fps, tune_psnr=False, **picture))
            sinks["audio"] = FileSink(writer, file_audio(source, info, fps, cut), "audio")
        vectors: MotionReader | None = None
        if info.quantized is not None:
            motion = None
            if info.quantized.bound == "auto":
                assert flow is not None
                motion = sample_motion(source, info, cut, decoder=decoder, flow=flow)
            levels = info.quantized.choose_levels(width, height, motion)
        flow_crf = max(0, info.quality - FLOW_CRF_OFFSET)
        for modality in moving:
            writer = open_writers.enter_context(
                ClipWriter(targets[modality], fps=fps, width=width, height=2 * height, crf=flow_crf, tune_psnr=True)
            )
            if modality == "flow":
                assert flow is not None
                sinks["flow"] = FlowSink(writer, flow, levels, size)
            else:
                vectors = open_writers.enter_context(_open_motion(source))
                encoded = (
                    stack_components(levels.encode(resize_flow(one[None], size)))[0]
                    for one in file_motion(vectors, info, cut)
                )
                sinks["motion"] = FileSink(writer, encoded, "motion", first=1)  # none before the first frame
        for chunk in _iter_chunks(chain([first], frames), size=chunk_size(first.shape[1], first.shape[0])):
            num_frames += len(chunk)
            if num_frames == 1 and moving:
                raise StageError(moving[0], f"the video has one frame only; {moving[0]} needs two")
            for sink in sinks.values():
                sink.add(chunk)
            on_frames(len(chunk))
        if vectors is not None and not vectors.has_vectors:
            raise StageError("motion", f"the file has no motion vectors that FFmpeg exports: {vectors.codec}")
    num_flow = num_frames - 1 if moving else 0
    for name, sink in sinks.items():
        assert sink.writer.num_frames == (num_flow if name in FLOW_MODALITIES else num_frames)
    stored_files: dict[str, Any] = {f"{name}_bytes": targets[name].stat().st_size for name in info.modalities}
    stored_files |= {f"{name}_sha256": file_sha256(targets[name]) for name in info.modalities}
    return ClipMetadata(
        num_frames=num_frames,
        num_flow=num_flow,
        fps=float(fps),
        width=width,
        height=height,
        source_sha256=_source_sha256(source, status.st_size, status.st_mtime_ns),
        source_bytes=status.st_size,
        source_mtime_ns=status.st_mtime_ns,
        flow_bound=levels.bound if info.quantized is not None and isinstance(info.quantized.bound, str) else 0.0,
        header_frames=round(reader.header_frames * fps / reader.fps) if cut == WHOLE else 0,
        **stored_files,
    )


class RgbSink:
    """Write frames to the RGB file."""

    def __init__(self, writer: ClipWriter, size: tuple[int, int]) -> None:
        self.writer, self._size = writer, size

    def add(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.writer.write_rgb(_resize(frame, self._size))


class FlowSink:
    """Write the flow of each pair of consecutive frames to the flow file, also across chunks."""

    def __init__(self, writer: ClipWriter, flow: FlowBackend, levels: FlowLevels, size: tuple[int, int]) -> None:
        self.writer = writer
        self._flow_backend, self._levels, self._size = flow, levels, size
        self._previous_frame: list[Frame] = []

    def add(self, frames: list[Frame]) -> None:
        gray = self._previous_frame + [to_gray(frame) for frame in frames]
        self._previous_frame = gray[-1:]
        flow = resize_flow(self._flow_backend(np.stack(gray)), self._size)  # (N, 2, H, W)
        for flow_image in stack_components(self._levels.encode(flow)):
            self.writer.write_luma(flow_image)


class FileSink:
    """Write one gray picture per frame, which comes from the file alone: motion vectors, or a piece of a spectrogram.

    The `first` frames have none.
    """

    def __init__(self, writer: ClipWriter, pictures: Iterator[Frame], modality: str, *, first: int = 0) -> None:
        self.writer = writer
        self._pictures, self._modality, self._skipped = pictures, modality, first

    def add(self, frames: list[Frame]) -> None:
        count = len(frames) - self._skipped
        self._skipped = 0
        pictures = list(islice(self._pictures, count))
        if len(pictures) < count:
            raise StageError(self._modality, "the decoder of the frames finds more of them than PyAV; use --decoder av")
        for picture in pictures:
            self.writer.write_luma(picture)


@lru_cache(maxsize=16)
def _source_sha256(source: Path, num_bytes: int, mtime_ns: int) -> str:
    """Return the SHA-256 of a file; only once for many cuts of a long video."""
    return file_sha256(source)


def flow_frames(reader: VideoReader, info: StoreInfo, cut: tuple[float, float] = WHOLE) -> Iterator[Frame]:
    """Yield the frames at the size that flow is computed at: as stored, or the video's own."""
    native = info.flow is not None and info.flow.size == "native"
    edge = 0 if native else info.short_edge
    return stored_frames(reader, short_edge=edge, max_frames=info.max_frames, fps=info.fps, cut=cut)


def _open_motion(source: Path) -> MotionReader:
    """Open a video file for its motion vectors; StageError if it can't be read."""
    try:
        return MotionReader(source)
    except (ValueError, FileNotFoundError, PermissionError) as error:
        raise StageError("open", str(error)) from error


def file_motion(reader: MotionReader, info: StoreInfo, cut: tuple[float, float] = WHOLE) -> Iterator[Flow]:
    """Yield the motion from each stored frame to the next, at the video's own size; StageError if it has none."""
    motion = reader.motion(start=cut[0], end=cut[1], fps=info.fps)
    try:
        yield from islice(motion, max(0, info.max_frames - 1) if info.max_frames else None)
    except ValueError as error:
        raise StageError("motion", str(error)) from error


def file_audio(source: Path, info: StoreInfo, fps: Fraction, cut: tuple[float, float] = WHOLE) -> Iterator[Frame]:
    """Yield the spectrogram (mels, columns) of the sound of each stored frame; StageError if the file has none."""
    assert info.audio is not None
    try:
        spectrogram = frame_spectra(source, info.audio, frame_seconds=1 / fps, start=cut[0], end=cut[1], fps=info.fps)
        yield from islice(spectrogram, info.max_frames or None)
    except (ValueError, FileNotFoundError, PermissionError) as error:
        raise StageError("audio", str(error)) from error


def stored_fps(reader: VideoReader, info: StoreInfo) -> Fraction:
    """Return the frame rate of the stored files: the video's own, or the one that it is resampled to."""
    return Fraction(info.fps).limit_denominator(100_000) if info.fps else reader.fps


def resize_flow(flow: NDArray[np.float32], size: tuple[int, int]) -> NDArray[np.float32]:
    """Resize flow (N, 2, H, W) to (width, height); its values become pixels of that size."""
    height, width = flow.shape[-2:]
    if (width, height) == size:
        return flow
    scales = size[0] / width, size[1] / height
    return np.stack(
        [[_resize(one, size) * np.float32(s) for one, s in zip(pair, scales, strict=True)] for pair in flow]
    )


def sample_motion(
    source: Path, info: StoreInfo, cut: tuple[float, float] = WHOLE, *, decoder: str, flow: FlowBackend
) -> NDArray[np.float32]:
    """Return the flow (N, 2, H, W), in stored pixels, of pairs of frames spread over the whole video or cut."""
    with _open_source(source, decoder) as reader:
        pairs = spread_pairs(map(to_gray, flow_frames(reader, info, cut)))
    if not pairs:
        return np.empty((0, 2, 0, 0), np.float32)
    height, width = pairs[0][0].shape
    size = stored_size(width, height, info.short_edge)
    return resize_flow(np.concatenate([flow(np.stack(pair)) for pair in pairs]), size)


def spread_pairs(frames: Iterator[Frame], *, limit: int = 16) -> list[tuple[Frame, Frame]]:
    """Return at most `limit` pairs of consecutive frames, evenly spaced, of a video whose length is not known."""
    pairs: list[tuple[Frame, Frame]] = []
    spacing, previous = 1, next(frames, None)
    for number, frame in enumerate(frames):
        if number % spacing == 0:
            assert previous is not None
            pairs.append((previous, frame))
            if len(pairs) > limit:
                pairs, spacing = pairs[::2], 2 * spacing
        previous = frame
    return pairs


def stored_frames(
    reader: VideoReader, *, short_edge: int, max_frames: int, fps: float = 0.0, cut: tuple[float, float] = WHOLE
) -> Iterator[Frame]:
    """Yield at most `max_frames` frames, resized as in the store: even sizes, all of the first frame's size."""
    size: tuple[int, int] | None = None
    try:
        for frame in islice(reader.frames(start=cut[0], end=cut[1], fps=fps), max_frames or None):
            if size is None:
                size = stored_size(frame.shape[1], frame.shape[0], short_edge)
            yield _resize_or_crop(frame, size, native=short_edge == 0)
    except ValueError as error:
        raise StageError("decode", str(error)) from error


def stored_size(width: int, height: int, short_edge: int) -> tuple[int, int]:
    """Return the stored (width, height), both even: the short edge as given (0: unchanged), the aspect ratio kept."""
    if min(width, height) < 2:
        raise ValueError(f"frames of {width}x{height} are too small")
    if not short_edge:
        return width - width % 2, height - height % 2
    scale = short_edge / min(width, height)
    return max(2, 2 * round(width * scale / 2)), max(2, 2 * round(height * scale / 2))


def _resize_or_crop(frame: Frame, size: tuple[int, int], *, native: bool) -> Frame:
    height, width = frame.shape[:2]
    if (width, height) == size:
        return frame
    if native and (width - width % 2, height - height % 2) == size:
        return np.ascontiguousarray(frame[: size[1], : size[0]])  # odd sizes lose their last row or column
    return _resize(frame, size)


def _resize(image: NDArray[Number], size: tuple[int, int]) -> NDArray[Number]:
    height, width = image.shape[:2]
    if (width, height) == size:
        return image
    shrinking = size[0] < width
    resized: NDArray[Number] = cv2.resize(image, size, interpolation=cv2.INTER_AREA if shrinking else cv2.INTER_LINEAR)
    return resized


def _open_source(source: Path, decoder: str) -> VideoReader:
    try:
        return open_video(source, decoder)
    except (ValueError, FileNotFoundError, PermissionError) as error:
        raise StageError("open", str(error)) from error


def chunk_size(width: int, height: int) -> int:
    """Return how many frames of this size are converted at a time; at least two, which give a flow."""
    return max(2, min(CHUNK_SIZE, CHUNK_PIXELS // (width * height)))


def _iter_chunks(frames: Iterator[Frame], *, size: int) -> Iterator[list[Frame]]:
    while chunk := list(islice(frames, size)):
        yield chunk
