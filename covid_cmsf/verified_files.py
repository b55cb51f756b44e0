"""Safetensors files with a SHA-256 of their content in the header, verified whenever they are read.

The header entry `covid_cmsf_sha256` is the SHA-256 of the whole file with that entry as 64 zeros. So it covers names,
shapes, metadata and values alike, and a copied or renamed file can still be verified. Any safetensors library reads
such files. Files without the entry (version 0.1.0, other projects) are read without verification.

Equal tensors and metadata give equal bytes.
"""

import hashlib
import json
import struct
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from covid_cmsf.files import atomic_path

SHA256_KEY = "covid_cmsf_sha256"
MAX_HEADER = 100_000_000  # bytes, as in safetensors
BLOCK = 1 << 20  # bytes hashed at a time
ALIGNMENT = 8  # bytes
ZEROS = "0" * 64
DTYPES = {  # the names of safetensors
    torch.float64: "F64", torch.int64: "I64", torch.uint64: "U64",
    torch.float32: "F32", torch.int32: "I32", torch.uint32: "U32",
    torch.float16: "F16", torch.bfloat16: "BF16", torch.int16: "I16", torch.uint16: "U16",
    torch.int8: "I8", torch.uint8: "U8", torch.bool: "BOOL",
}  # fmt: skip


class DamagedFileError(ValueError):
    """The content of a file is not what was written."""


def write_tensors(path: Path | str, tensors: Mapping[str, Tensor], *, metadata: Mapping[str, str]) -> None:
    """Write tensors and metadata atomically, with their SHA-256. The tensors are written one by one, without a copy."""
    # Large items first keeps every tensor aligned, as safetensors wants it.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, Any] = {"__metadata__": {**dict(sorted(metadata.items())), SHA256_KEY: ZEROS}}
    offset = 0
    for name, tensor in ordered:
        end = offset + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise ValueError(f"{path}: names and metadata take {len(text):,} bytes; a header holds {MAX_HEADER:,}")
    digest = hashlib.sha256()
    with atomic_path(Path(path)) as temporary, temporary.open("wb") as file:
        start = memoryview(struct.pack("<Q", len(text)) + text)
        for block in chain([start], (_tensor_bytes(tensor) for _, tensor in ordered)):
            digest.update(block)
            file.write(block)
        file.seek(8 + _digest_position(text))
        file.write(digest.hexdigest().encode())


def read_tensors(path: Path | str, *, hint: str = "copy it again") -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return tensors and metadata of a safetensors file, verified; `hint` tells users of a damaged file what to do."""
    verify_tensors(path, hint=hint)
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            metadata: dict[str, str] = file.metadata() or {}
    except SafetensorError as error:
        raise DamagedFileError(f"{path} is a truncated or damaged safetensors file ({error}): {hint}") from None
    metadata.pop(SHA256_KEY, None)
    return tensors, metadata


def read_metadata(path: Path | str) -> dict[str, str]:
    """Return the metadata of a safetensors file, not verified: to tell kinds of files apart; {} for any other file."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata: dict[str, str] = file.metadata() or {}
            return metadata
    except (SafetensorError, OSError):
        return {}


def verify_tensors(path: Path | str, *, hint: str = "copy it again") -> bool:
    """Raise DamagedFileError unless the file has the SHA-256 of its header. Return False if its header has none."""
    with Path(path).open("rb") as file:
        start, text = _read_header(file)
        position = _digest_position(text)
        if position < 0:
            return False
        expected = text[position : position + len(ZEROS)]
        digest = hashlib.sha256(start + text[:position] + ZEROS.encode() + text[position + len(ZEROS) :])
        while block := file.read(BLOCK):
            digest.update(block)
    if digest.hexdigest().encode() != expected:
        reason = "its content does not have the SHA-256 of its header"
        raise DamagedFileError(f"{path} is a truncated or damaged safetensors file ({reason}): {hint}")
    return True


def _tensor_bytes(tensor: Tensor) -> memoryview:
    if tensor.numel() == 0:  # its strides may be 0, which `view` refuses
        return memoryview(b"")
    flat: Any = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    return memoryview(flat)


def _read_header(file: BinaryIO) -> tuple[bytes, bytes]:
    """Return the first 8 bytes, the length of the header, and the header; both empty if this is another format."""
    start = file.read(8)
    length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
    return (start, file.read(length)) if 0 < length <= MAX_HEADER else (b"", b"")


def _digest_position(header: bytes) -> int:
    """Return where the digest begins in the header; -1 if there is none."""
    key = f'"{SHA256_KEY}":"'.encode()
    found = header.rfind(key)  # the last one is ours: quotes within metadata are escaped, so they do not match
    return found + len(key) if found >= 0 else -1
