"""The sound of a video file as a log-mel spectrogram, a piece per video frame: the modality `audio`.

A frame shown from t to t + 1 / fps has `columns` spectra, evenly spaced over that time; those of consecutive frames
join to one picture. Each is the power of 25 ms of sound (a Hann window), summed into triangular bands that are evenly
spaced in mel, in decibels: 0 dB is a sine at full scale. Time 0 is the first video frame. Where there is no sound it is
silent.

    for picture in frame_spectra(path, AudioInfo(version=""), frame_seconds=Fraction(1, 25)):
        ...                                 # uint8 (mels, columns), the highest mel first

Shapes: M mels, N columns, F frequencies, C channels, S samples.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing
from fractions import Fraction
from functools import cache
from itertools import count
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.audio_info import AudioInfo
from covid_cmsf.clips.containers import open_container, to_fraction
from covid_cmsf.clips.decoders import INDEXED_FORMATS, SEEK_MARGIN, AvReader
from covid_cmsf.files import check_regular_file

RATE = 16_000  # samples per second
WINDOW = 400  # samples of a spectrum: 25 ms
FFT_SIZE = 512
MAX_DRIFT = 0.1  # seconds between a time stamp and the end of the sound before it; above it there is a gap
KEPT = RATE  # samples before the last ones that were asked for
Samples = NDArray[np.float32]


class SoundReader:
    """The sound of a file at 16 kHz, mono, read forward. Sample 0 is at `origin` seconds of the file's time stamps."""

    def __init__(self, path: Path, *, origin: Fraction, start: float = 0.0) -> None:
        """Open the file to read from `start` seconds after the origin on; ValueError if it has no sound."""
        check_regular_file(path, "video file")
        try:
            self._container = open_container(path)
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"cannot open as a video: {error}") from error
        if not self._container.streams.audio or self._container.streams.audio[0].codec_context is None:
            self._container.close()
            raise ValueError("the file has no sound, or in a codec that is not known")
        self._stream, self._origin = self._container.streams.audio[0], origin
        self._seek(start)
        self._pieces: deque[tuple[int, Samples]] = deque()  # number of the first sample, samples
        self._decoding = self._decode()
        self._end = 0  # of the piece that was decoded last
        self._dropped = -KEPT  # samples before this one are forgotten
        self.has_samples = self.has_damage = False

    def read(self, first: int, number: int) -> Samples:
        """Return samples [first, first + number); 0 where the file has none. `first` may go back by a second only."""
        if first < self._dropped:
            raise ValueError("the time stamps of the frames go back")
        while not self._pieces or self._end < first + number:
            piece = next(self._decoding, None)
            if piece is None:
                break
            self._pieces.append(piece)
            self._end = piece[0] + len(piece[1])
            self.has_samples = True
        self._dropped = max(self._dropped, first - KEPT)
        while self._pieces and self._pieces[0][0] + len(self._pieces[0][1]) <= self._dropped:
            self._pieces.popleft()
        samples = np.zeros(number, np.float32)
        for begin, values in self._pieces:
            low, high = max(begin, first), min(begin + len(values), first + number)
            if low < high:
                samples[low - first : high - first] = values[low - begin : high - begin]
        return samples

    def _seek(self, start: float) -> None:
        """Go to a little before `start`, in files where that is exact."""
        time_base = to_fraction(self._stream.time_base)
        if start <= SEEK_MARGIN or self._container.format.name not in INDEXED_FORMATS or time_base is None:
            return
        try:
            self._container.seek(int((self._origin + Fraction(start - SEEK_MARGIN)) / time_base), stream=self._stream)
        except (av.error.FFmpegError, OSError) as error:
            self._container.close()
            raise ValueError(f"seeking in the sound failed: {error}") from error

    def _decode(self) -> Iterator[tuple[int, Samples]]:
        """Yield pieces of sound with the number of their first sample."""
        resampler, position, known_format = None, 0, None
        expected = self._origin
        for frame in self._frames():
            time_base = to_fraction(frame.time_base)
            time = None if frame.pts is None or time_base is None else frame.pts * time_base
            new_format = (frame.format.name, frame.layout.name, frame.sample_rate)
            has_gap = time is not None and abs(time - expected) > MAX_DRIFT
            if resampler is None or has_gap or new_format != known_format:
                if resampler is not None:
                    yield from _place(resampler.resample(None), position)
                resampler, known_format = av.AudioResampler(format="fltp", rate=RATE), new_format
                expected = expected if time is None else time
                position = round((expected - self._origin) * RATE)
            expected += Fraction(frame.samples, frame.sample_rate)
            for first, values in _place(resampler.resample(frame), position):
                yield first, values
                position = first + len(values)
        if resampler is not None:
            yield from _place(resampler.resample(None), position)

    def _frames(self) -> Iterator[av.AudioFrame]:
        """Decode; a damaged packet is left out, as players do: clips cut out of films often begin with one."""
        try:
            for packet in self._container.demux(self._stream):
                try:
                    yield from packet.decode()
                except av.error.InvalidDataError:
                    self.has_damage = True
        except (av.error.FFmpegError, OSError) as error:
            raise ValueError(f"reading the sound stopped: {error}") from error

    def close(self) -> None:
        self._container.close()


def _place(frames: Iterable[av.AudioFrame], position: int) -> Iterator[tuple[int, Samples]]:
    """Yield the mean of the channels of resampled frames, one after the other from `position` on."""
    for frame in frames:
        values: Samples = frame.to_ndarray().mean(0)  # (C, S)
        yield position, values
        position += len(values)


class FrameTimes(AvReader):
    """The times of the frames that `AvReader.frames` yields."""

    def origin(self) -> Fraction:
        """Return the time stamp of the first frame in seconds, and go back to it."""
        first = next(self._decode(), None)
        time_base = to_fraction(self._stream.time_base)
        self._container.close()
        self._open()
        return Fraction(0) if first is None or first.pts is None or time_base is None else first.pts * time_base

    def times(self, *, start: float, end: float, fps: float) -> Iterator[float]:
        """Yield seconds since the first frame. With `fps` they go on without an end, and nothing is decoded."""
        if fps:
            return (start + number / fps for number in count())
        return (time for _, time in self._decode_between(self._decode, start, end))


def frame_spectra(
    path: Path, info: AudioInfo, *, frame_seconds: Fraction, start: float, end: float, fps: float
) -> Iterator[NDArray[np.uint8]]:
    """Yield the spectrogram (mels, columns), uint8, of each frame of `frames(start=start, end=end, fps=fps)`.

    With `fps` there is no last one. ValueError if the file has no sound, or none of it can be decoded.
    """
    with FrameTimes(path) as video, closing(SoundReader(path, origin=video.origin(), start=start)) as sound:
        for time in video.times(start=start, end=end, fps=fps):
            picture = _spectra_at(sound, time, frame_seconds, info)
            if sound.has_damage and not sound.has_samples:
                raise ValueError("nothing of its sound can be decoded")
            yield picture


def _spectra_at(sound: SoundReader, time: float, seconds: Fraction, info: AudioInfo) -> NDArray[np.uint8]:
    """Return the spectrogram of the sound from `time` to `time + seconds`."""
    centers = np.rint((time + (np.arange(info.columns) + 0.5) * float(seconds / info.columns)) * RATE).astype(np.int64)
    first = int(centers[0]) - WINDOW // 2
    samples = sound.read(first, int(centers[-1] - centers[0]) + WINDOW)
    windows = samples[(centers - centers[0])[:, None] + np.arange(WINDOW)]  # (N, S)
    return quantize(log_mel(windows, mel_filters(info.num_mels, info.low_hz, info.high_hz)), info.floor_db)


def log_mel(windows: Samples, filters: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the decibels (N, M) of windows of sound (N, S) in bands (M, F)."""
    shape = np.hanning(WINDOW + 1)[:-1]
    amplitudes = np.abs(np.fft.rfft(windows * shape, FFT_SIZE)) * (2 / shape.sum())  # a sine at full scale has 1
    decibels: NDArray[np.float64] = 10 * np.log10(np.maximum(amplitudes**2 @ filters.T, 1e-20))
    return decibels


def quantize(decibels: NDArray[np.float64], floor_db: float) -> NDArray[np.uint8]:
    """Return levels (M, N), the highest mel first, of decibels (N, M)."""
    levels = np.rint((decibels / floor_db) * -255 + 255).clip(0, 255).astype(np.uint8)
    return np.ascontiguousarray(levels.T[::-1])


@cache
def mel_filters(num_mels: int, low_hz: float, high_hz: float) -> NDArray[np.float64]:
    """Return triangles (M, F) with a peak of 1, evenly spaced in mel: 2595 log10(1 + Hz / 700)."""
    low, high = (2595 * math.log10(1 + hertz / 700) for hertz in (low_hz, high_hz))
    mels = np.linspace(low, high, num_mels + 2)
    edges = 700 * (10 ** (mels / 2595) - 1)
    left, peak, right = (edges[i : i + num_mels, None] for i in range(3))
    hertz = np.arange(FFT_SIZE // 2 + 1) * (RATE / FFT_SIZE)
    triangles: NDArray[np.float64] = np.minimum((hertz - left) / (peak - left), (right - hertz) / (right - peak))
    return triangles.clip(0)


def check_sound(paths: Iterable[Path]) -> None:
    """Raise ValueError if no file has sound; a file that can't be opened is none of them. Stops at the first one."""
    number = 0
    for path in paths:
        try:
            with closing(open_container(path)) as container:
                number += 1
                if container.streams.audio:
                    return
        except (av.error.FFmpegError, OSError):
            continue
    if number:
        raise ValueError(f"--modalities audio: none of the {number} videos has sound; leave audio out")
