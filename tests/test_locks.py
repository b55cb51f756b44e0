"""Locks between processes: alone, together, and what a killed holder leaves."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from covid_cmsf.locks import Locked, is_locked, join_lock, lock_file

HOLD = """
import sys, time
from pathlib import Path
from covid_cmsf.locks import join_lock, lock_file
path = Path(sys.argv[2])
held = lock_file(path) if sys.argv[1] == "alone" else join_lock(path, first=lambda: None, check=lambda: None)
with held:
    print("held", flush=True)
    sys.stdin.readline()
"""


@contextmanager
def other_process(how: str, path: Path) -> Iterator["subprocess.Popen[str]"]:
    command = [sys.executable, "-c", HOLD, how, str(path)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    try:
        yield process
    finally:
        process.communicate("\n" if process.poll() is None else None)


def test_a_held_lock_is_seen_refused_and_gone_afterward(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    assert not is_locked(path)
    with other_process("alone", path):
        assert is_locked(path)
        with pytest.raises(Locked, match="somebody trains"), lock_file(path, message="somebody trains"):
            pass
    assert not path.exists()
    with lock_file(path):
        pass
    assert not path.exists()


def test_a_killed_holder_locks_nobody_out(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with other_process("alone", path) as holder:
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    assert path.exists() and not is_locked(path)
    with lock_file(path):
        assert path.exists()


def test_only_the_first_of_those_who_join_is_alone(tmp_path: Path) -> None:
    path, calls = tmp_path / "lock", []

    def join() -> None:
        with join_lock(path, first=lambda: calls.append("first"), check=lambda: calls.append("check")):
            assert path.exists()

    join()
    assert calls == ["first", "check"] and not path.exists()
    with other_process("together", path):
        join()
        assert calls == ["first", "check", "check"]
        assert path.exists()  # the other one still holds it
    assert not path.exists()


def test_a_check_that_raises_frees_the_lock(tmp_path: Path) -> None:
    def refuse() -> None:
        raise ValueError("another plan")

    path = tmp_path / "lock"
    with pytest.raises(ValueError, match="another plan"), join_lock(path, first=lambda: None, check=refuse):
        pass
    assert not path.exists()


def test_locks_are_possible_on_nfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, a shared lock needs a file that is open for reading, and one held alone one that is open for writing."""
    real, asked = fcntl.flock, []

    def flock(file: IO[str], operation: int) -> None:
        mode = fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE
        asked.append(operation)
        if mode == (os.O_RDONLY if operation & fcntl.LOCK_EX else os.O_WRONLY):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        real(file, operation)

    monkeypatch.setattr("covid_cmsf.locks.fcntl.flock", flock)
    path = tmp_path / "lock"
    with lock_file(path):
        assert is_locked(path)
    with join_lock(path, first=lambda: None, check=lambda: None):
        pass
    assert not path.exists() and len(asked) >= 4


def test_a_state_can_be_asked_for_without_the_right_to_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode is compared, not permissions: the tests may run as root, whom none stop."""
    path, modes = tmp_path / "lock", []
    path.touch()
    real = Path.open

    def watched(self: Path, mode: str = "r") -> IO[str]:
        modes.append(mode)
        return real(self, mode)

    monkeypatch.setattr(Path, "open", watched)
    assert not is_locked(path) and modes == ["r"]


@pytest.mark.parametrize("look", [1, 2])
def test_a_lock_whose_file_is_removed_while_it_is_looked_at_is_taken_again(
    look: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "lock", Path.stat
    looks: list[Path] = []

    def stat(self: Path, **options: bool) -> os.stat_result:
        looks.extend([path] if self == path else [])
        if self == path and len(looks) == look:
            path.unlink()  # by its former holder, right now
        return real(self, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "stat", stat)
        with lock_file(path):
            pass
    assert looks and not path.exists()
