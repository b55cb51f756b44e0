"""Read the entries of a weights file without executing code in it, and verify them.

Two formats are read: torch's (zip, and the older one before torch 1.6) with the restricted unpickler, and
safetensors. Each kind of damaged or unsafe file has its own error message. Files of this package are compared with the
checksums that were written with them: CRC-32 in torch files, SHA-256 in safetensors.
"""

import argparse
import logging
import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.models.checkpoints.torch_file import damaged_record
from covid_cmsf.verified_files import DamagedFileError, read_tensors

logger = logging.getLogger(__name__)
# A plain container of attributes; the official MSF and CMSF code stores its command-line arguments in one.
SAFE_GLOBALS: list[Any] = [argparse.Namespace]
ZIP_MAGIC, PICKLE_MAGIC = b"PK\x03\x04", b"\x80"
# Raised by torch.load on damaged files; the last two only by its older format.
READ_ERRORS = (
    *(RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, OSError, MemoryError, OverflowError),
    *(struct.error, AssertionError),
)
DAMAGED_HINT = "copy or download it again"
SHARED_WEIGHTS = "model.safetensors"  # in a folder of `save_pretrained`
OUR_ENTRIES = {"format", "encoder", "state"}  # of a training checkpoint of this package


@dataclass(frozen=True)
class CheckpointFile:
    """The entries of the outermost mapping of a file; `header` is the metadata of a safetensors file."""

    path: Path
    values: Mapping[str, Any]
    header: Mapping[str, str] | None = None


def find_checkpoint(path: str | Path) -> Path:
    """Return the newest checkpoint of a run folder, or the weights of a shared one; another path as it is."""
    path = Path(path)
    if not path.is_dir():
        return path
    if (path / SHARED_WEIGHTS).is_file():
        return path / SHARED_WEIGHTS
    checkpoint = path / "checkpoints" / "last.pt"
    if not checkpoint.is_file():
        raise FileNotFoundError(f"{path} is neither a weights file nor a run folder: it has no checkpoints/last.pt")
    return checkpoint


def read_checkpoint_file(path: Path) -> CheckpointFile:
    """Read a torch or safetensors file (of a run folder: its checkpoint) on the CPU; never execute code in it."""
    path = find_checkpoint(path)
    if not path.is_file():
        raise FileNotFoundError(f"no run folder or weights file {path}")
    with path.open("rb") as file:
        start = file.read(16)
    if not start:
        raise ValueError(f"{path} is empty (0 bytes): {DAMAGED_HINT}")
    # Safetensors start with the length of their header, whose first byte may look like a pickle's: test them first.
    if start[8:9] == b"{":
        return _read_safetensors(path)
    if start.startswith((ZIP_MAGIC, PICKLE_MAGIC)):
        values = _as_mapping(path, _read_torch(path))
        _check_sizes(path, values)
        if start.startswith(ZIP_MAGIC):
            _check_records(path, ours=values.keys() >= OUR_ENTRIES)
        return CheckpointFile(path, values)
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    guess = (
        "it looks like a web page, so the download failed"
        if start.lstrip()[:1] == b"<"
        else f"it starts with {start!r}"
    )
    raise ValueError(f"{path} is not a weights file: {guess}; torch files (.pt, .pth, .tar) and .safetensors are read")


def _read_safetensors(path: Path) -> CheckpointFile:
    values, header = read_tensors(path, hint=DAMAGED_HINT)
    return CheckpointFile(path, values, header)


def _read_torch(path: Path) -> object:
    try:
        with torch.serialization.safe_globals(SAFE_GLOBALS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(_unsafe_message(path, str(error))) from None
    except READ_ERRORS as error:
        if "TorchScript" in str(error):
            raise ValueError(f"{path} is a TorchScript program, not weights; save its state_dict() instead") from None
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{path} is a truncated or damaged torch file ({first_line}): {DAMAGED_HINT}") from None


def _check_sizes(path: Path, values: Mapping[str, Any]) -> None:
    """Raise ValueError if a tensor claims more elements than are stored: a copy of it would fill the memory."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            _check_sizes(path, value)
        elif isinstance(value, Tensor) and value.layout == torch.strided:
            stored = value.untyped_storage().nbytes() // value.element_size()
            if value.numel() > stored:
                raise ValueError(
                    f"{path}: {key} has shape {tuple(value.shape)}, but only {stored:,} of its {value.numel():,} "
                    "values are stored; save it again with .contiguous()"
                )


def _check_records(path: Path, *, ours: bool) -> None:
    """Compare the checksums; of other projects' files, which may have been written without them, only warn."""
    record = damaged_record(path)
    if record is not None and ours:
        reason = f"{record} differs from its checksum"
        raise DamagedFileError(f"{path} is a truncated or damaged torch file ({reason}): {DAMAGED_HINT}")
    if record is not None:
        logger.warning("%s: %s differs from its checksum: it is damaged, or was written without them", path, record)


def _unsafe_message(path: Path, message: str) -> str:
    """Return the error message for a file that the restricted unpickler refused."""
    unsafe = re.search(r"GLOBAL ([\w.]+)", message)
    if unsafe is None:
        return f"{path} is not a torch file that can be read safely ({message.splitlines()[0]})"
    return (
        f"{path} would execute {unsafe.group(1)!r} when loaded, so it is refused: weights need no code. "
        "If you trust its source, save only its tensors again with the code that wrote it: "
        "torch.save(model.state_dict(), ...) or safetensors"
    )


def _as_mapping(path: Path, contents: object) -> Mapping[str, Any]:
    if not isinstance(contents, Mapping):
        raise ValueError(f"{path} contains a {type(contents).__name__}, not a state dict or a checkpoint")
    return {str(key): value for key, value in contents.items()}
