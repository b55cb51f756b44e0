"""Read files with errors that name them, write them atomically (temporary name, fsync, rename), and hash them.

A file has its final name only when it is complete, even after a crash.
"""

import csv
import hashlib
import io
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

FORMULA_STARTS = tuple("=+-@")


def check_regular_file(path: Path, kind: str = "file") -> None:
    """Raise FileNotFoundError or ValueError unless `path` is a regular file: opening a pipe would wait forever."""
    if not path.is_file():
        if path.exists():
            raise ValueError(f"{path} is not a regular file")
        raise FileNotFoundError(f"no {kind} {path}")


def check_file_size(path: Path, num_bytes: int) -> None:
    """Raise ValueError if a file has another size than it was written with; 0 bytes: the size is not known."""
    if num_bytes and path.is_file() and (found := path.stat().st_size) != num_bytes:
        raise ValueError(f"it has {found} bytes, but {num_bytes} were written: it was replaced or cut")


def read_text(path: Path) -> str:
    """Return the UTF-8 text of a file, without a byte-order mark; ValueError with file and line if it is not UTF-8."""
    check_regular_file(path)
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}, line {line}: byte {data[error.start]:#04x} is not UTF-8 text") from None


def json_sha256(value: Any) -> str:
    """Return the SHA-256 of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def read_json(path: Path, *, hint: str = "") -> Any:
    """Return the value of a JSON file; ValueError with the file and place if it is none. `hint`: what to do then."""
    try:
        return json.loads(text := read_text(path))
    except json.JSONDecodeError as error:
        reason = str(error) if text.strip() else "it is empty"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        if str(path) in str(error):
            raise
        reason = str(error)  # an integer of thousands of digits
    raise ValueError(f"{path} is not JSON: {reason}{f'; {hint}' if hint else ''}")


def read_csv(path: Path) -> tuple[list[str], list[dict[str | None, Any]]]:
    """Return the columns and rows of a CSV file, as `csv.DictReader` does; ValueError with the file if it is none."""
    reader: csv.DictReader[Any] = csv.DictReader(io.StringIO(read_text(path), newline=""))
    try:
        return list(reader.fieldnames or ()), list(reader)
    except csv.Error as error:
        raise ValueError(f"{path}, line {reader.line_num}: {error}") from None


@contextmanager
def atomic_path(final: Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of `final`; on exit, flush the file to disk and rename it to `final`.

    An exception inside the block removes the temporary file and leaves `final` unchanged.
    """
    temporary = final.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        yield temporary
        fsync_and_rename(temporary, final)
    except OSError as error:
        if error.filename in (None, str(temporary)):  # as on a full disk: name the file that users know
            error.filename = str(final)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporary(folder: Path) -> None:
    """Remove what a killed process left in a folder under a temporary name; nobody else may be writing there."""
    for left in folder.glob(".*.tmp"):
        if left.is_dir():
            shutil.rmtree(left)
        else:
            left.unlink(missing_ok=True)


def write_text_atomic(final: Path, text: str) -> None:
    """Write UTF-8 text; surrogate escapes (undecodable bytes of file names) become the original bytes again."""
    with atomic_path(final) as temporary:
        temporary.write_bytes(text.encode("utf-8", "surrogateescape"))


def fsync_and_rename(temporary: Path, final: Path) -> None:
    """Flush `temporary` to disk and rename it to `final` (same file system), replacing an existing file."""
    with temporary.open("rb+") as file:
        os.fsync(file.fileno())
    temporary.replace(final)
    fsync_dir(final.parent)


def fsync_dir(folder: Path) -> None:
    """Flush the entries of `folder`, so that renames survive a power cut (POSIX only; no effect elsewhere)."""
    if os.name == "posix":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def escape_cell(value: object) -> object:
    """Put ' before text that a spreadsheet would take for a formula, and before text that has one already."""
    return f"'{value}" if isinstance(value, str) and value.lstrip("'")[:1] in FORMULA_STARTS else value


def unescape_cell(text: str) -> str:
    """Undo `escape_cell`."""
    return text[1:] if text[:1] == "'" and text.lstrip("'")[:1] in FORMULA_STARTS else text


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, as hexadecimal text."""
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
