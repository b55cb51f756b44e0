"""Locks between processes, also of several machines that share a disk with `flock` (NFS 4, Lustre with `flock`).

A lock is a file that its holder has locked; the kernel frees it when the holder dies. Its file is gone afterward.
On NFS a shared lock needs a file that is open for reading, and one held alone a file that is open for writing.
"""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


class Locked(ValueError):
    """Another process holds the lock."""


@contextmanager
def lock_file(path: Path, *, wait: bool = False, message: str = "") -> Iterator[None]:
    """Hold a lock alone; `wait` for it, or raise `Locked` with a message if another process holds it."""
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                raise Locked(message or f"another process holds {path}") from None
            if not _is_file_of(path, file):
                continue  # its holder has just removed it, so this lock locks out nobody
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return


def is_locked(path: Path) -> bool:
    """Whether another process holds the lock at this moment."""
    try:
        with path.open("r") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


@contextmanager
def join_lock(path: Path, *, first: Callable[[], None], check: Callable[[], None]) -> Iterator[None]:
    """Hold a lock together with others.

    If nobody holds it, `first` is called alone; then, in any case, `check`, which may raise.
    """
    while True:
        with path.open("a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if not _is_file_of(path, file):
                    continue
                first()
            except BlockingIOError:
                pass
            fcntl.flock(file, fcntl.LOCK_SH)
            if not _is_file_of(path, file):
                continue
            try:
                check()
                yield
            finally:
                _remove_if_last(path, file)
            return


def _is_file_of(path: Path, file: IO[str]) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _remove_if_last(path: Path, file: IO[str]) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    path.unlink(missing_ok=True)
