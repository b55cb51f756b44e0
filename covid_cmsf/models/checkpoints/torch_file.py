"""Write and verify torch files of this package.

A torch file is a zip archive whose records have CRC-32 checksums. `torch.load` does not compare them; `damaged_record`
does, so a file can be verified wherever it was moved.
"""

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch

from covid_cmsf.files import atomic_path


def write_torch_file(path: Path, values: Mapping[str, Any]) -> None:
    """Write a mapping atomically; OSError with the path if it can't be written, as on a full disk."""
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        save_to(file, values)


def save_to(file: BinaryIO, values: Mapping[str, Any]) -> None:
    """Call `torch.save`; an error of the file system is raised as such, not as torch's `enforce fail`."""
    try:
        torch.save(dict(values), file)
    except RuntimeError as error:
        cause: BaseException | None = error
        while cause is not None and not isinstance(cause, OSError):
            cause = cause.__context__
        raise (error if cause is None else cause) from None


def damaged_record(path: Path) -> str | None:
    """Return the first record of a torch zip file that differs from its checksum; None if all are sound."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip()
    except (zipfile.BadZipFile, NotImplementedError, OSError, EOFError, ValueError, RuntimeError) as error:
        return f"the table of records ({error})"
