"""Stop requests: SIGTERM (job schedulers), SIGUSR1 (their early warning), SIGINT (Ctrl-C)."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """`asked` becomes True at the first signal; a second Ctrl-C interrupts at once."""

    def __init__(self) -> None:
        self.asked = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = True


@contextmanager
def stop_request() -> Iterator[StopRequest]:
    """Turn signals within the block into a stop request."""
    request = StopRequest()
    before = {number: signal.signal(number, request.handle) for number in SIGNALS}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
