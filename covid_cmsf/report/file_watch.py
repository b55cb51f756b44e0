"""What was computed from a file is kept until the file changes: a page that follows a training run is cheap then."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from covid_cmsf.report.runs import FEATURES, PLAN_FILE, read_runs

T = TypeVar("T")
Stamp = tuple[int, int]


def file_stamp(path: Path) -> Stamp:
    """Changes when the file is written again."""
    info = path.stat()
    return info.st_mtime_ns, info.st_size


class FileCache:
    """Values by path, each with the stamp of the file that it was made from."""

    def __init__(self) -> None:
        self._entries: dict[tuple[str, Path], tuple[Stamp, object]] = {}

    def get(self, kind: str, path: Path, make: Callable[[], T]) -> T:
        """`make()`, or what it gave for the same file."""
        current = file_stamp(path)
        entry = self._entries.get((kind, path))
        if entry is not None and entry[0] == current:
            return entry[1]  # type: ignore[return-value]
        value = make()
        self._entries[kind, path] = current, value
        return value


# Has anything changed that a report is made from?

WATCHED_FILES = (
    "config.yaml",
    "metrics.jsonl",
    "stage.json",
    "summary.json",
    "retrieval.json",
    "linear.json",
    FEATURES,
)


def read_input_stamps(paths: Sequence[Path]) -> dict[Path, Stamp]:
    """Of all files that matter in these folders of plans and runs, as far as they are there."""
    folders = read_runs(paths)
    watched = [plan.folder / PLAN_FILE for plan in folders]
    watched += [stage.folder / name for plan in folders for stage in plan.stages for name in WATCHED_FILES]
    return {path: file_stamp(path) for path in watched if path.is_file()}
