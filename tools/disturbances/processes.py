"""Commands as process groups that can be signaled, killed and limited (Linux only).

A command is forked from this process, which has imported everything: the imports take longer than the small commands.
"""

import atexit
import importlib.util
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import NoReturn

PIPE_SIZE = 1 << 20  # bytes that a command can print before it has to wait for us
POLL = 0.005  # seconds
GRACE = 10.0  # seconds that helpers of a command have for ending after it


@dataclass
class Ended:
    """How a command ended; `code` is negative for a signal, None where it had to be killed for taking too long."""

    code: int | None
    output: str
    left: list[int] = field(default_factory=list)  # processes of its group that outlived it


class Running:
    """A command in a process group of its own."""

    def __init__(self, body: Callable[[], None], folder: Path, *, max_file_size: int | None = None) -> None:
        self._reader, writer = os.pipe2(os.O_NONBLOCK)
        os.set_blocking(writer, True)
        ready, started = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _be_command(body, folder, writer, started, max_file_size)
        os.close(writer)
        os.close(started)
        os.read(ready, 1)  # it is in its group, and about to call `body`
        os.close(ready)
        self._code: int | None = None
        self._output = b""

    def poll(self) -> bool:
        """Tell whether it still runs."""
        self._drain()
        if self._code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code is None

    def wait(self, seconds: float) -> bool:
        """Wait at most this long; tell whether it still runs."""
        end = time.monotonic() + seconds
        while self.poll() and time.monotonic() < end:
            time.sleep(POLL)
        return self._code is None

    def signal_group(self, number: signal.Signals) -> None:
        """Send a signal to the command and to all processes that it has started."""
        for pid in group_members(self.pid):
            try:
                os.kill(pid, number)
            except ProcessLookupError:  # ended meanwhile
                continue

    def end(self, seconds: float) -> Ended:
        """Wait for the command and its processes; kill what is left after `seconds`."""
        hangs = self.wait(seconds)
        if hangs:
            self.kill()
        left = group_members(self.pid)
        limit = time.monotonic() + GRACE
        while left and time.monotonic() < limit:
            time.sleep(POLL)
            left = group_members(self.pid)
        self.kill()
        self._drain()
        os.close(self._reader)
        return Ended(None if hangs else self._code, self._output.decode("utf-8", "replace"), left)

    def kill(self) -> None:
        """Kill the whole group, and return when nobody of it is left."""
        while (self.poll() or True) and group_members(self.pid):
            self.signal_group(signal.SIGKILL)
            time.sleep(POLL)
        self.wait(GRACE)

    def _drain(self) -> None:
        try:
            while block := os.read(self._reader, PIPE_SIZE):
                self._output += block
        except BlockingIOError:
            return


def group_members(group: int) -> list[int]:
    """Return the living processes of a process group."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text()
        except OSError:  # ended meanwhile
            continue
        state, _, process_group = text[text.rindex(")") + 2 :].split()[:3]
        if int(process_group) == group and state != "Z":
            found.append(int(folder.name))
    return found


def _be_command(
    body: Callable[[], None], folder: Path, writer: int, started: int, max_file_size: int | None
) -> NoReturn:
    """Run `body` in the forked process; never return to the frames of the parent."""
    code = 1
    try:
        os.setsid()
        os.chdir(folder)
        for target in (1, 2):
            os.dup2(writer, target)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        # The parent's may be files with a position, and a pipe has none.
        sys.stdout, sys.stderr = (os.fdopen(target, "w", closefd=False) for target in (1, 2))
        if max_file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (max_file_size, max_file_size))
        _replace_main()
        atexit._clear()  # those of the parent
        os.write(started, b"x")
        body()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 (it must not go on in the parent's frames)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _replace_main() -> None:
    """Let spawned workers import what they would import under `python -m covid_cmsf`, not this tool."""
    main = ModuleType("__main__")
    main.__spec__ = importlib.util.find_spec("covid_cmsf.__main__")
    sys.modules["__main__"] = main
