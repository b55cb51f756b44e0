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

    Until `training` is set, a signal interrupts at once: filling a guide's cache or decoding clips may take hours.
    """

    def __init__(self) -> None:
        self.asked = False
        self.training = False

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        if not self.training:
            raise StoppedBeforeTraining
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
