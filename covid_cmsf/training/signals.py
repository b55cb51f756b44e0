"""Stop requests: SIGTERM (job schedulers), SIGUSR1 (their early warning), SIGINT (Ctrl-C)."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
# torchrun passes SIGUSR1 on to its processes only if told so, and kills them 30 s later unless told otherwise.
TORCHRUN_OPTIONS = ("--signals-to-handle=SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1", "--shutdown-timeout=60")


class StoppedBeforeTraining(BaseException):
    """A signal came while the run was being built: there is nothing to save yet."""


class StopRequest:
    """`asked` becomes True at the first signal; a second Ctrl-C interrupts at once.

    While `at_once` is set, a signal raises StoppedBeforeTraining: filling a guide's cache or decoding clips may take
    hours, and nobody looks at `asked` meanwhile.
    """

    def __init__(self, *, at_once: bool = False) -> None:
        self.asked = False
        self.at_once = at_once

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.at_once:
            raise StoppedBeforeTraining
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_request(*, at_once: bool = False) -> Iterator[StopRequest]:
    """Turn signals within the block into a stop request."""
    request = StopRequest(at_once=at_once)
    before = {number: signal.signal(number, request.handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
