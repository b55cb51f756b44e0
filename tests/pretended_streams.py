"""Streams and events of the pretended GPU (`pretended_gpu`). Its time stands still unless a test lets some pass."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from tests.pretended_copies import COPIES_TO_CPU


class Stream:
    """A stream, whose work is done at once."""

    def __init__(self, device: Any = None) -> None:
        pass

    def wait_stream(self, other: "Stream") -> None:
        assert self is MAIN and other is not MAIN
        STREAMS.log.append("waited for")


class Event:
    """An event that has happened as soon as it is recorded, but for copies to the CPU: those it must be waited for."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timed, self._time = enable_timing, 0.0
        self._copies = COPIES_TO_CPU.launched[:0]

    def record(self, stream: Stream | None = None) -> None:
        self._time, self._copies = STREAMS.seconds, COPIES_TO_CPU.launched

    def synchronize(self) -> None:
        COPIES_TO_CPU.finish(self._copies)
        STREAMS.count_wait("torch.cuda.Event.synchronize")

    def elapsed_time(self, later: "Event") -> float:
        """Return milliseconds."""
        assert self._timed and later._timed
        return 1e3 * (later._time - self._time)


class Streams:
    """The current stream, what was asked of streams, and the time that events tell."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.current, self.log, self.seconds = MAIN, list[str](), 0.0
        self.count_wait: Callable[[str], None] = lambda what: None

    @contextmanager
    def use(self, stream: Stream) -> Iterator[None]:
        """Make `stream` the current one within the block."""
        before, self.current = self.current, stream
        self.log.append("copied aside")
        yield
        self.current = before


MAIN = Stream()
STREAMS = Streams()


def _record_stream(tensor: torch.Tensor, stream: Stream) -> None:
    assert tensor.is_cuda and stream is MAIN, "memory of the side stream is used by the main one"
    STREAMS.log.append("recorded")


def stream_replacements(count_wait: Callable[[str], None]) -> dict[str, Any]:
    """Return the functions of torch that know of no pretended stream, by name. Waiting for an event is counted."""
    STREAMS.reset()
    STREAMS.count_wait = count_wait
    names = {"Stream": Stream, "Event": Event, "stream": STREAMS.use, "current_stream": lambda device: STREAMS.current}
    return {**{f"torch.cuda.{name}": one for name, one in names.items()}, "torch.Tensor.record_stream": _record_stream}
