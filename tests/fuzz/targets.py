"""A kind of file that others may have made: a small valid one, how it is damaged, and its reader."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.mutations import Damage, damaged_bytes


def nothing(path: Path) -> None:
    """Prepare nothing."""


@dataclass(frozen=True)
class Target:
    """A kind of file."""

    name: str
    write: Callable[[Path], Path]  # writes a folder with a valid file, and returns the path of that
    read: Callable[[Path], object]  # gets the same path when the file is damaged
    damage: Damage = damaged_bytes
    named: str = ""  # in errors, where the reader is given a folder rather than the file
    prepare: Callable[[Path], None] = nothing  # what somebody who damages the file on purpose would do besides
