"""What was computed from a file is kept until the file changes: a page that follows a training run is cheap then."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")
Stamp = tuple[int, int]


def stamp(path: Path) -> Stamp:
    """Changes when the file is written again."""
    facts = path.stat()
    return facts.st_mtime_ns, facts.st_size


class FileCache:
    """Values by path, each with the stamp of the file that it was made from."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, Path], tuple[Stamp, object]] = {}

    def of(self, what: str, path: Path, make: Callable[[], T]) -> T:
        """`make()`, or what it gave for the same file."""
        now = stamp(path)
        kept = self._kept.get((what, path))
        if kept is not None and kept[0] == now:
            return kept[1]  # type: ignore[return-value]
        value = make()
        self._kept[what, path] = now, value
        return value
