"""Safetensors files are verified against the SHA-256 that was written with them."""

import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from covid_cmsf.verified_files import DamagedFileError, read_metadata, read_tensors, verify_tensors, write_tensors

TENSORS = {
    "values": torch.linspace(-1, 1, 35).reshape(5, 7),
    "transposed": torch.arange(6).reshape(2, 3).T,
    "flags": torch.tensor([True, False, True]),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "empty": torch.empty(0, 4),
    "empty, of numpy": torch.from_numpy(np.cumsum(np.zeros(0, dtype=np.int64))),
    "scalar": torch.tensor(7),
}
METADATA = {"kind": '{"covid_cmsf_sha256":"no"}', "a": "ä \n"}


def test_tensors_and_metadata_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, TENSORS, metadata=METADATA)
    tensors, metadata = read_tensors(path)
    assert metadata == METADATA
    assert tensors.keys() == TENSORS.keys()
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype and torch.equal(tensors[name], tensor), name
    assert read_metadata(path)["kind"] == METADATA["kind"]
    assert load_file(path).keys() == TENSORS.keys()  # an ordinary safetensors file
    assert verify_tensors(path)


def test_equal_content_gives_equal_bytes(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_tensors(tmp_path / name, dict(sorted(TENSORS.items())) if name == "a" else TENSORS, metadata=METADATA)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_every_flipped_bit_is_found_wherever_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(4)}, metadata={"k": "v"})
    sound = path.read_bytes()
    key = sound.index(b"covid_cmsf_sha256")
    for position in range(len(sound)):
        if position < 8 or key - 3 <= position < key + 20:  # length of the header, name of the entry: other errors
            continue
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        with pytest.raises(DamagedFileError, match=r"a\.safetensors.*write it anew"):
            read_tensors(path, hint="write it anew")


@pytest.mark.parametrize("length", [0, 5, 8, 60, -1])
def test_a_truncated_file_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "a.safetensors"
    write_tensors(path, {"x": torch.ones(4)}, metadata={})
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(DamagedFileError, match=r"a\.safetensors"):
        read_tensors(path)


def test_a_file_without_a_hash_is_read_as_before(tmp_path: Path) -> None:
    path = tmp_path / "old.safetensors"
    save_file({"x": torch.ones(4)}, path, metadata={"k": "v"})
    assert not verify_tensors(path)
    tensors, metadata = read_tensors(path)
    assert torch.equal(tensors["x"], torch.ones(4)) and metadata == {"k": "v"}


def test_a_header_that_claims_to_be_huge_allocates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", 2**60) + b"{}")
    with pytest.raises(DamagedFileError, match=r"a\.safetensors"):
        read_tensors(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.safetensors"):
        read_tensors(tmp_path / "none.safetensors")
    assert read_metadata(tmp_path / "none.safetensors") == {}
