"""Decode video files with PyAV (default), decord or torchcodec (`torchcodec_reader`), behind one protocol.

They give the same frames, except for 2 in a million values on real UCF-101 clips, which differ by 1 or 2 levels: PyAV
and decord bundle different releases of FFmpeg. One shared reformatter converts to RGB, which is 4 to 10 times faster
than `frame.to_ndarray(format=...)`; it uses one thread, because workers are processes.
Shapes: T frames, H x W pixels.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from heapq import heappop, heappush
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray
from typing_extensions import Self

from covid_cmsf.clips.containers import open_container, stream_fps, to_fraction
from covid_cmsf.clips.resampling import resample
from covid_cmsf.files import check_regular_file

Frames = NDArray[np.uint8]
DECODERS = ("av", "decord", "torchcodec")
MAX_PIXELS = 36_000_000  # 8K has 33 million


class Stamped(Protocol):
    """A frame, or what stands for it, with its time stamp."""

    @property
    def pts(self) -> int | None: ...

    @property
    def key_frame(self) -> bool: ...


Item = TypeVar("Item", bound=Stamped)


class VideoReader(Protocol):
    """An open video file. Use it in a `with` block."""

    fps: Fraction
    header_frames: int  # number of frames according to the header, often wrong; 0 if it has none

    def frames(self, *, start: float = 0.0, end: float = math.inf, fps: float = 0.0) -> Iterator[Frames]:
        """Yield the frames in order as RGB (H, W, 3), rotated upright: all, or those at times start <= t < end.

        Times are in seconds since the first frame. With `fps`, frame i is the one nearest to start + i / fps.
        """
        ...

    def read_rgb(self, frame_indices: Sequence[int]) -> Frames:
        """Return these frames as RGB (T, H, W, 3); the file must have a constant frame rate."""
        ...

    def read_luma(self, frame_indices: Sequence[int]) -> Frames:
        """Return the luma plane of these frames, (T, H, W), exactly as encoded."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def choose_decoder(name: str) -> str:
    """Return the decoder's name (`auto` is av); ValueError if it is unknown or not installed."""
    if name == "auto":
        return "av"
    if name.partition(":")[0] == "torchcodec":
        from covid_cmsf.clips.torchcodec_reader import check_torchcodec

        check_torchcodec(name)
        return name
    if name not in DECODERS:
        raise ValueError(f"unknown decoder {name!r}; choose from auto, {', '.join(DECODERS)}")
    if name == "decord" and find_spec("decord") is None:
        raise ValueError(
            "decoder 'decord' is not installed: pip install decord (wheels exist for x86-64 only), or use av"
        )
    return name


def open_video(path: Path, decoder: str = "av") -> VideoReader:
    """Open a video file; ValueError with the decoder's message if it can't be read."""
    check_regular_file(path, "video file")
    chosen = choose_decoder(decoder)
    if chosen.startswith("torchcodec"):
        from covid_cmsf.clips.torchcodec_reader import TorchcodecReader, device_of

        return TorchcodecReader(path, device_of(chosen))
    return DecordReader(path) if chosen == "decord" else AvReader(path)


def header_seconds(path: Path) -> float | None:
    """Return the length of a video file according to its header; None if it does not say, or can't be read."""
    try:
        with AvReader(path) as reader:
            return reader.header_seconds()
    except ValueError:
        return None


class AvReader:
    """`VideoReader` on PyAV."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._open()
        self._reformatter = VideoReformatter()
        self.fps = stream_fps(self._stream)
        self.header_frames = int(self._stream.frames)

    def _open(self) -> None:
        try:
            self._container = open_container(self._path)
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"cannot open as a video: {_first_line(error)}") from error
        if not self._container.streams.video:
            self._container.close()
            raise ValueError("the file has no video stream")
        self._stream = self._container.streams.video[0]
        if self._stream.codec_context is None:
            self._container.close()
            raise ValueError("no decoder for the codec that the file names")
        self._stream.thread_type = "NONE"
        self._stream.codec_context.thread_count = 1

    def header_seconds(self) -> float | None:
        """Return the length according to the header; None if it does not say."""
        stream = self._stream
        if stream.duration and (time_base := to_fraction(stream.time_base)) is not None:
            return float(stream.duration * time_base)
        return self._container.duration / av.time_base if self._container.duration else None

    def frames(self, *, start: float = 0.0, end: float = math.inf, fps: float = 0.0) -> Iterator[Frames]:
        for frame in self._choose(self._decode, start=start, end=end, fps=fps):
            if frame.width * frame.height > MAX_PIXELS:
                raise ValueError(f"frames of {frame.width}x{frame.height} are too large: at most {MAX_PIXELS} pixels")
            yield np.rot90(self._rgb(frame), k=frame.rotation // 90).copy()

    def read_rgb(self, frame_indices: Sequence[int]) -> Frames:
        return self._read_frames(frame_indices, self._rgb)

    def read_luma(self, frame_indices: Sequence[int]) -> Frames:
        return self._read_frames(frame_indices, _luma)

    def rotation(self) -> int:
        """Decode the first frame and return its rotation in degrees, counter-clockwise."""
        first = next(self._decode(), None)
        if first is None:
            raise ValueError("the file has no frames")
        return first.rotation

    def _rgb(self, frame: av.VideoFrame) -> Frames:
        """Return RGB (H, W, 3), a view of the decoder's memory."""
        plane = self._reformatter.reformat(frame, format="rgb24", threads=1).planes[0]
        rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
        return rows[:, : 3 * frame.width].reshape(frame.height, frame.width, 3)

    def _choose(self, decode: Callable[[], Iterator[Item]], *, start: float, end: float, fps: float) -> Iterator[Item]:
        """Yield what `frames` is documented to yield, of the frames that `decode` yields from the current position."""
        if start <= 0 and end == math.inf and not fps:
            return decode()
        timed = self._decode_between(decode, start, end)
        if fps:
            return resample(timed, fps=fps, start=start, end=end, last_duration=float(1 / self.fps))
        return (frame for frame, _ in timed)

    def _decode(self) -> Iterator[av.VideoFrame]:
        try:
            yield from self._container.decode(self._stream)
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"decoding stopped: {_first_line(error)}") from error

    def _decode_between(
        self, decode: Callable[[], Iterator[Item]], start: float, end: float
    ) -> Iterator[tuple[Item, float]]:
        """Decode the frames at start <= t < end; yield them with their times."""
        first = next(decode(), None)
        origin = 0 if first is None or first.pts is None else first.pts
        time_base = to_fraction(self._stream.time_base) or 1 / self.fps
        frames = self._decode_from(decode, start, origin, time_base)
        for frame, pts in sort_time_stamps(frames, origin, ticks=round(1 / (self.fps * time_base))):
            time = float((pts - origin) * time_base)
            if time >= end:
                return
            if time >= start:
                yield frame, time

    def _decode_from(
        self, decode: Callable[[], Iterator[Item]], start: float, origin: int, time_base: Fraction
    ) -> Iterator[Item]:
        """Decode from a key frame before `start`; from the first frame if seeking might not be exact."""
        if start > SEEK_MARGIN and self._container.format.name in INDEXED_FORMATS:
            self._seek(origin + int((start - SEEK_MARGIN) / time_base))
            frames = decode()
            first = next(frames, None)
            pts = None if first is None or not first.key_frame else first.pts
            if first is not None and pts is not None and (pts - origin) * time_base <= start:
                yield first
                yield from frames
                return
        self._container.close()
        self._open()
        yield from decode()

    def _seek(self, ticks: int) -> None:
        try:
            self._container.seek(ticks, stream=self._stream)
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"seeking failed: {_first_line(error)}") from error

    def _read_frames(self, frame_indices: Sequence[int], convert: Callable[[av.VideoFrame], Frames]) -> Frames:
        """Decode forward to each requested frame; seek over gaps of more than SEEK_GAP frames."""
        positions: dict[int, list[int]] = {}
        for position, number in enumerate(frame_indices):
            positions.setdefault(number, []).append(position)
        time_base = to_fraction(self._stream.time_base)
        if time_base is None:
            raise ValueError("the stream has no time base")
        ticks = float(1 / (self.fps * time_base))  # stream ticks per frame
        output: Frames | None = None
        decoding: Iterator[av.VideoFrame] = iter(())
        current = -SEEK_GAP - 1
        for number in sorted(positions):
            if number > current + SEEK_GAP:
                self._seek(int(number * ticks))
                decoding = self._decode()
            for frame in decoding:
                if frame.pts is None:
                    raise ValueError("a frame has no time stamp")
                current = round(frame.pts / ticks)
                if current >= number:
                    break
            if current != number:
                raise ValueError(f"frame {number} is not in the file")
            values = convert(frame)
            if output is None:
                output = np.empty((len(frame_indices), *values.shape), np.uint8)
            for position in positions[number]:
                output[position] = values
        assert output is not None
        return output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._container.close()


SEEK_MARGIN = 1.0  # seconds: an index has the order of decoding, in which a key frame is earlier than it is displayed
# In others (avi, mpegts, mpeg) time stamps after a seek may be other ones than when the file is read through.
INDEXED_FORMATS = ("mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm")
MAX_EXCHANGED = 4  # frames
SEEK_GAP = 16  # frames; decoding over a smaller gap is cheaper than a seek


class DecordReader:
    """`VideoReader` on decord."""

    def __init__(self, path: Path) -> None:
        import decord

        # decord has no exact frame rate, number of frames in the header, or rotation: PyAV reads them.
        with AvReader(path) as probe:
            self.fps, self.header_frames = probe.fps, probe.header_frames
            if probe.rotation():
                raise ValueError("the video is rotated, which decord 0.6 reads with wrong strides; use the decoder av")
        try:
            self._reader = decord.VideoReader(str(path), ctx=decord.cpu(0), num_threads=1)
        except (decord.DECORDError, RuntimeError) as error:
            raise ValueError(f"cannot open as a video: {_first_line(error)}") from error

    def frames(self, *, start: float = 0.0, end: float = math.inf, fps: float = 0.0) -> Iterator[Frames]:
        if start > 0 or end != math.inf or fps:
            raise ValueError("decord 0.6 has no exact time stamps to cut or resample by; use the decoder av")
        for number in range(len(self._reader)):
            yield self._batch([number])[0]

    def read_rgb(self, frame_indices: Sequence[int]) -> Frames:
        return self._batch(frame_indices)

    def read_luma(self, frame_indices: Sequence[int]) -> Frames:
        return np.ascontiguousarray(self._batch(frame_indices)[..., 1])

    def _batch(self, frame_indices: Sequence[int]) -> Frames:
        import decord

        if len(frame_indices) and max(frame_indices) >= len(self._reader):
            raise ValueError(f"frame {max(frame_indices)} is not in the file")
        try:
            frames: Frames = self._reader.get_batch(list(frame_indices)).asnumpy()
        except (decord.DECORDError, RuntimeError) as error:
            raise ValueError(f"decoding stopped: {_first_line(error)}") from error
        return frames

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        del self._reader


def sort_time_stamps(frames: Iterable[Item], origin: int, *, ticks: int) -> Iterator[tuple[Item, int]]:
    """Yield the frames as they come, with their time stamps in ascending order.

    AVI files with B-frames, as many of UCF-101's, have frames in order with the stamps of close neighbors. A frame
    without a stamp follows its predecessor by `ticks`; the first one has `origin`.
    """
    waiting: deque[Item] = deque()
    stamps: list[int] = []
    last = origin - ticks
    for frame in frames:
        last = last + ticks if frame.pts is None else frame.pts
        waiting.append(frame)
        heappush(stamps, last)
        if len(waiting) > MAX_EXCHANGED:
            yield waiting.popleft(), heappop(stamps)
    while waiting:
        yield waiting.popleft(), heappop(stamps)


def _luma(frame: av.VideoFrame) -> Frames:
    """Return the luma plane (H, W), a view of the decoder's memory."""
    plane = frame.planes[0]
    rows = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
    return rows[: frame.height, : frame.width]


def _first_line(error: Exception) -> str:
    """Return the first line of an error: decord appends its C++ stack."""
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
