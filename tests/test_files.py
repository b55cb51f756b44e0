"""Files appear whole or not at all."""

from pathlib import Path

import pytest

from covid_cmsf.files import atomic_path, write_text_atomic


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    final = tmp_path / "a.txt"
    write_text_atomic(final, "old")
    with pytest.raises(RuntimeError), atomic_path(final) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert final.read_text() == "old"
    assert list(tmp_path.iterdir()) == [final]


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.txt"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_undecodable_bytes_of_names_survive(tmp_path: Path) -> None:
    write_text_atomic(tmp_path / "a.txt", b"caf\xe9".decode("utf-8", "surrogateescape"))
    assert (tmp_path / "a.txt").read_bytes() == b"caf\xe9"
