"""The watch over readers: it sees whatever a reader must not do."""

import os
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.fuzz import watch
from tests.fuzz.watch import FindingError, check


def refuse(path: Path) -> None:
    raise ValueError(f"{path} is damaged")


def refuse_anonymously(path: Path) -> None:
    raise ValueError("damaged")


def break_off(path: Path) -> None:
    raise KeyError(path)


def start_a_program(path: Path) -> None:
    subprocess.run(["true"], check=True)


def start_a_program_and_hide_it(path: Path) -> None:
    try:
        os.posix_spawn("/bin/true", ["true"], {})
    except Exception:  # noqa: BLE001 (as some readers do)
        raise ValueError(f"{path} is damaged") from None


def write_beside(path: Path) -> None:
    path.with_name("other").write_text("x")


def take_memory(path: Path) -> None:
    np.ones(watch.MEMORY // 8 + (8 << 20))


def hang(path: Path) -> None:
    signal.pause()


def test_reading_and_refusing_are_fine(tmp_path: Path) -> None:
    assert check(lambda path: None, tmp_path / "x", ("x",)) and not check(refuse, tmp_path / "x", ("x",))


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (refuse_anonymously, "does not name the file"),
        (break_off, "KeyError"),
        (start_a_program, "subprocess.Popen"),
        (start_a_program_and_hide_it, "said so to nobody: os.posix_spawn"),
        (write_beside, "open"),
        (take_memory, "it took"),
        (hang, "did not end"),
    ],
)
def test_anything_else_is_a_finding(
    read: watch.Read, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if read is hang:
        monkeypatch.setattr(watch, "SECONDS", 1)
    with pytest.raises(FindingError, match=message):
        check(read, tmp_path / "file.x", ("file.x",))
