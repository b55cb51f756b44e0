"""Files appear whole or not at all."""

import os
from pathlib import Path

import pytest

from covid_cmsf.files import atomic_path, read_text, remove_temporary, write_text_atomic


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    final = tmp_path / "a.txt"
    write_text_atomic(final, "old")
    with pytest.raises(RuntimeError), atomic_path(final) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert final.read_text() == "old"
    assert list(tmp_path.iterdir()) == [final]


def test_what_a_kill_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "a.txt") as temporary:
        temporary.write_text("half")
        kept = {name: tmp_path / name for name in ("b.tmp", ".lock", "sub")}
        kept["b.tmp"].touch()
        kept[".lock"].touch()
        kept["sub"].mkdir()
        copied = tmp_path / ".0123.tmp"  # a stage that was being copied
        copied.mkdir()
        (copied / "stage.json").touch()
        remove_temporary(tmp_path)
        assert sorted(tmp_path.iterdir()) == sorted(kept.values())
        temporary.touch()


def test_a_block_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "a.txt"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_undecodable_bytes_of_names_survive(tmp_path: Path) -> None:
    write_text_atomic(tmp_path / "a.txt", b"caf\xe9".decode("utf-8", "surrogateescape"))
    assert (tmp_path / "a.txt").read_bytes() == b"caf\xe9"


@pytest.mark.parametrize(("data", "line"), [(b"\xff\xfe", 1), (b"a: 1\nb: caf\xe9\n", 2)])
def test_text_that_is_not_utf8_names_file_and_line(tmp_path: Path, data: bytes, line: int) -> None:
    (tmp_path / "x.txt").write_bytes(data)
    with pytest.raises(ValueError, match=rf"x\.txt, line {line}: byte 0x.. is not UTF-8 text"):
        read_text(tmp_path / "x.txt")


def test_a_pipe_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is not a regular file"):
        read_text(tmp_path / "pipe")
    with pytest.raises(FileNotFoundError, match="no file .*gone"):
        read_text(tmp_path / "gone")
    (tmp_path / "x.txt").write_text("\ufeffhello", encoding="utf-8")
    assert read_text(tmp_path / "x.txt") == "hello"
