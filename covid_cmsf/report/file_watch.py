"""Cache values until the file behind them changes, and detect changes of a report's input files."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from covid_cmsf.cotrain.answers import ANSWERS_FILE
from covid_cmsf.report.runs import FEATURES, PLAN_FILE, read_runs

T = TypeVar("T")
Stamp = tuple[int, int]


def file_stamp(path: Path) -> Stamp:
    """Return modification time (ns) and size of a file."""
    info = path.stat()
    return info.st_mtime_ns, info.st_size


class FileCache:
    """Values computed from files, valid until the file changes."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, Path], tuple[Stamp, object]] = {}

    def get(self, kind: str, path: Path, make: Callable[[], T]) -> T:
        """Return `make()`, or its cached value if the file has not changed."""
        current = file_stamp(path)
        entry = self._entries.get((kind, path))
        if entry is not None and entry[0] == current:
            return entry[1]  # type: ignore[return-value]
        value = make()
        self._entries[kind, path] = current, value
        return value


WATCHED_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "stage.json",
    "summary.json",
    "retrieval.json",
    "linear.json",
    ANSWERS_FILE,
    FEATURES,
)


def read_input_stamps(paths: Sequence[Path]) -> dict[Path, Stamp]:
    """Return the stamps of all existing input files of plans and runs."""
    folders = read_runs(paths)
    watched = [plan.folder / PLAN_FILE for plan in folders]
    watched += [stage.folder / name for plan in folders for stage in plan.stages for name in WATCHED_FILES]
    return {path: file_stamp(path) for path in watched if path.is_file()}
