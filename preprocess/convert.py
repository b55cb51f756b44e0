"""Convert one video file to its store files, in chunks: memory does not grow with the video's length.

Shapes: N pairs of frames, H x W pixels.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.decoders import VideoReader, open_video
from covid_cmsf.clips.flow_codec import encode_flow, stack_components
from covid_cmsf.clips.records import StoreInfo
from covid_cmsf.files import file_sha256
from preprocess.encode import FLOW_CRF_OFFSET, ClipWriter
from preprocess.flow import FlowBackend, to_gray

CHUNK_SIZE = 16  # frames per batch of the flow backend and per progress message, at most
CHUNK_PIXELS = CHUNK_SIZE * 1920 * 1088  # so that memory does not grow with the frames' size: 4 frames of 4K, 2 of 8K
Frame = NDArray[np.uint8]


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
    rgb_bytes: int
    flow_bytes: int
    rgb_sha256: str
    flow_sha256: str
    header_frames: int  # number of frames according to the file's header, for a warning if it is far off


def convert(
    source: Path,
    targets: Mapping[str, Path],
    info: StoreInfo,
    *,
    decoder: str,
    flow: FlowBackend | None,
    on_frames: Callable[[int], None] = lambda count: None,
) -> ClipMetadata:
    """Write `targets[modality]` for every modality of the store; StageError if the video can't be converted.

    OSError (a full disk, for example) is not caught: it is not the video's fault. `on_frames` gets the number of
    frames of each finished chunk.
    """
    with _open_source(source, decoder) as reader, ExitStack() as open_writers:
        status = source.stat()  # before reading: a change in the meantime is noticed by the next run
        frames = stored_frames(reader, short_edge=info.short_edge, max_frames=info.max_frames)
        first = next(frames, None)
        if first is None:
            raise StageError("decode", "the file has no frames")
        height, width = first.shape[:2]
        num_frames = 0
        sinks: list[RgbSink | FlowSink] = []
        if "rgb" in info.modalities:
            rgb_writer = ClipWriter(targets["rgb"], fps=reader.fps, width=width, height=height, crf=info.quality)
            sinks.append(RgbSink(open_writers.enter_context(rgb_writer)))
        if "flow" in info.modalities:
            assert info.flow is not None and flow is not None
            flow_crf = max(0, info.quality - FLOW_CRF_OFFSET)
            flow_writer = ClipWriter(
                targets["flow"], fps=reader.fps, width=width, height=2 * height, crf=flow_crf, tune_psnr=True
            )
            sinks.append(FlowSink(open_writers.enter_context(flow_writer), flow, info.flow.bound))
        for chunk in _iter_chunks(chain([first], frames), size=chunk_size(width, height)):
            num_frames += len(chunk)
            if num_frames == 1 and "flow" in info.modalities:
                raise StageError("flow", "the video has one frame only; flow needs two")
            for sink in sinks:
                sink.add(chunk)
            on_frames(len(chunk))
    num_flow = num_frames - 1 if "flow" in info.modalities else 0
    for sink in sinks:
        assert sink.writer.num_frames == (num_frames if isinstance(sink, RgbSink) else num_flow)
    sizes = {modality: targets[modality].stat().st_size for modality in info.modalities}
    hashes = {modality: file_sha256(targets[modality]) for modality in info.modalities}
    return ClipMetadata(
        num_frames=num_frames,
        num_flow=num_flow,
        fps=float(reader.fps),
        width=width,
        height=height,
        source_sha256=file_sha256(source),
        source_bytes=status.st_size,
        source_mtime_ns=status.st_mtime_ns,
        rgb_bytes=sizes.get("rgb", 0),
        flow_bytes=sizes.get("flow", 0),
        rgb_sha256=hashes.get("rgb", ""),
        flow_sha256=hashes.get("flow", ""),
        header_frames=reader.header_frames,
    )


class RgbSink:
    """Write frames to the RGB file."""

    def __init__(self, writer: ClipWriter) -> None:
        self.writer = writer

    def add(self, frames: list[Frame]) -> None:
        for frame in frames:
            self.writer.write_rgb(frame)


class FlowSink:
    """Write the flow of each pair of consecutive frames to the flow file, also across chunks."""

    def __init__(self, writer: ClipWriter, flow: FlowBackend, bound: float) -> None:
        self.writer = writer
        self._flow_backend, self._bound = flow, bound
        self._previous_frame: list[Frame] = []

    def add(self, frames: list[Frame]) -> None:
        gray = self._previous_frame + [to_gray(frame) for frame in frames]
        self._previous_frame = gray[-1:]
        quantized = encode_flow(self._flow_backend(np.stack(gray)), self._bound)  # (N, 2, H, W)
        for flow_image in stack_components(quantized):
            self.writer.write_luma(flow_image)


def stored_frames(reader: VideoReader, *, short_edge: int, max_frames: int) -> Iterator[Frame]:
    """Yield at most `max_frames` frames, resized as in the store: even sizes, all of the first frame's size."""
    size: tuple[int, int] | None = None
    try:
        for frame in islice(reader.frames(), max_frames or None):
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
    shrinking = size[0] < width
    resized: Frame = cv2.resize(frame, size, interpolation=cv2.INTER_AREA if shrinking else cv2.INTER_LINEAR)
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
