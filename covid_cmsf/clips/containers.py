"""Containers of video files, read with PyAV 17 to 19: how they are opened, and their rational numbers.

PyAV 19 has rationals of its own instead of `Fraction`, which are 0, 0/0 or 1/0 where it used to have None.
"""

from fractions import Fraction
from pathlib import Path
from typing import Any, Protocol

import av
from av.container import InputContainer

DEFAULT_FPS = Fraction(25)
# PyAV 19 has no such option, as it reads what is not UTF-8.
READ_OPTIONS: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}


class Ratio(Protocol):
    """A rational number: `Fraction`, or PyAV's own."""

    @property
    def numerator(self) -> int: ...

    @property
    def denominator(self) -> int: ...


def open_container(path: Path) -> InputContainer:
    """Open a video file. Old files may have titles in any encoding: that must not hide their frames."""
    container: InputContainer = av.open(str(path), **READ_OPTIONS)
    return container


def stream_fps(stream: av.VideoStream) -> Fraction:
    """Return the frame rate that the header has, as `valid_fps` does."""
    return valid_fps(stream.average_rate or stream.guessed_rate)


def valid_fps(rate: Ratio | None) -> Fraction:
    """Return the header's frame rate, or 25 if it has none or one outside 1..240 (some headers say 1000 or 90000)."""
    fps = to_fraction(rate)
    return fps.limit_denominator(100_000) if fps is not None and 1 <= fps <= 240 else DEFAULT_FPS


def to_fraction(value: Ratio | None) -> Fraction | None:
    """Return a rational number of PyAV as a fraction; None if it is unknown."""
    return Fraction(value.numerator, value.denominator) if value else None
