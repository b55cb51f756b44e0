"""Read a file under watch: a reader returns, or raises ValueError or FileNotFoundError that names the file.

Anything else is a finding: another exception, a process or connection that is started, a file that is written, more
memory than the file can need, or no end.
"""

import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 20  # no read takes one; a machine under load needs room
MEMORY = 300 << 20  # bytes beyond those before; the valid files have some kilobytes
ADDRESSES = 4 << 30  # bytes that may be asked for at all
FORBIDDEN = (
    *("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.remove", "os.rename"),
    *("subprocess.", "socket.connect", "shutil.", "ctypes.dlopen"),
)
Read = Callable[[Path], object]


class FindingError(Exception):
    """A reader did what it must not."""


_forbidden: list[str] | None = None  # events of the watched read; None: nothing is watched


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if _forbidden is None:
        return
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR)
    if event.startswith(FORBIDDEN) or (writes and args[0] != os.devnull):
        _forbidden.append(f"{event} {args!r:.200}")
        raise FindingError(_forbidden[-1])


sys.addaudithook(_audit)


def check(read: Read, path: Path, names: tuple[str, ...]) -> bool:
    """Return whether a file was read rather than refused; FindingError if it was neither. `names`: one is in errors."""
    with _limits():
        try:
            read(path)
            return True
        except (ValueError, FileNotFoundError) as error:
            if not any(name in str(error) for name in names):
                raise FindingError(f"the error does not name the file: {error!r:.300}") from error
            return False
        except FindingError:
            raise
        except Exception as error:
            raise FindingError(f"{type(error).__name__}: {error!s:.300}") from error


@contextmanager
def _limits() -> Iterator[None]:
    global _forbidden

    def expired(*_: object) -> None:
        raise FindingError(f"it did not end in {SECONDS} s")

    status = Path("/proc/self/status")
    is_linux = status.is_file()
    if is_linux:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        before = _status(status, "VmHWM")
        limit = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_status(status, "VmSize") + ADDRESSES, limit[1]))
    handler = signal.signal(signal.SIGALRM, expired)
    signal.alarm(SECONDS)
    events = _forbidden = []
    try:
        yield
    finally:
        _forbidden = None
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)
        if is_linux:
            resource.setrlimit(resource.RLIMIT_AS, limit)
    if events:
        raise FindingError(f"it was stopped, and said so to nobody: {events[0]}")
    if is_linux and (grown := _status(status, "VmHWM") - before) > MEMORY:
        raise FindingError(f"it took {grown >> 20} MB")


def _status(path: Path, name: str) -> int:
    """Return bytes of an entry of /proc/self/status."""
    line = next(line for line in path.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) << 10
