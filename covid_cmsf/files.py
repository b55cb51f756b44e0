"""Files that appear under their final name only when they are whole, also after a crash."""

import hashlib
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """A temporary path beside `final`; leaving the block flushes it to disk and renames it to `final`.

    An exception inside the block removes the temporary file and leaves `final` as it was.
    """
    temporary = final.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        fsync_and_rename(temporary, final)
    finally:
        temporary.unlink(missing_ok=True)


def write_text_atomic(final: Path, text: str) -> None:
    """Writes UTF-8 text; undecodable bytes of file names (surrogates) are written back as those bytes."""
    with atomic_path(final) as temporary:
        temporary.write_bytes(text.encode("utf-8", "surrogateescape"))


def fsync_and_rename(temporary: Path, final: Path) -> None:
    """Flushes `temporary` and renames it to `final` (same file system), replacing what is there."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
    fsync_dir(final.parent)


def fsync_dir(folder: Path) -> None:
    """Makes renames and new names in `folder` survive a power cut (where the system can open folders)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


# Hashes of files.


def file_sha256(path: Path) -> str:
    """SHA-256 of a file's bytes."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
