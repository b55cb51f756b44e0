"""Read the entries of a weights file without executing code in it.

Two formats are read: torch's (zip, and the older one before torch 1.6) with the restricted unpickler, and
safetensors. Each kind of damaged or unsafe file has its own error message.
"""

import argparse
import pickle
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

# A plain container of attributes; the official MSF and CMSF code stores its command-line arguments in one.
SAFE_GLOBALS: list[Any] = [argparse.Namespace]
ZIP_MAGIC, PICKLE_MAGIC = b"PK\x03\x04", b"\x80"
# Raised by torch.load on damaged files.
READ_ERRORS = (RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, OSError, struct.error)
DAMAGED_HINT = "copy or download it again"


@dataclass(frozen=True)
class CheckpointFile:
    """The entries of the outermost mapping of a file; `header` is the metadata of a safetensors file."""

    path: Path
    values: Mapping[str, Any]
    header: Mapping[str, str] | None = None


def find_checkpoint(path: str | Path) -> Path:
    """Return the newest checkpoint of a run folder; any other path is returned as it is."""
    path = Path(path)
    if not path.is_dir():
        return path
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
        return CheckpointFile(path, _as_mapping(path, _read_torch(path)))
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    guess = (
        "it looks like a web page, so the download failed"
        if start.lstrip()[:1] == b"<"
        else f"it starts with {start!r}"
    )
    raise ValueError(f"{path} is not a weights file: {guess}; torch files (.pt, .pth, .tar) and .safetensors are read")


def _read_safetensors(path: Path) -> CheckpointFile:
    try:
        with safe_open(path, framework="pt") as file:
            values = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
            return CheckpointFile(path, values, file.metadata() or {})
    except SafetensorError as error:
        raise ValueError(f"{path} is a truncated or damaged safetensors file ({error}): {DAMAGED_HINT}") from None


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
