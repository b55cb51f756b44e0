"""What users decide on the page, kept as CSV files: labels of videos, and which copies they have confirmed."""

import csv
import io
from collections.abc import Iterable, Mapping
from pathlib import Path

from covid_cmsf.clips.names import CONTROL
from covid_cmsf.files import escape_cell, read_csv, unescape_cell, write_text_atomic

LABELS_FILE, DECISIONS_FILE = "labels.csv", "copies.csv"
DECISIONS = ("copy", "different")
MAX_NAME = 200  # characters of a label
Pair = tuple[str, str]


def is_text(label: str) -> bool:
    """Whether a table can hold a label: no control characters, and no halves of a character, as JSON may have."""
    return CONTROL.search(label) is None and label.encode("utf-8", "replace").decode() == label


def read_labels(folder: Path) -> dict[str, str]:
    """Return {video id: label}; empty if nothing was labeled yet."""
    return {row["video"]: row["label"] for row in _read(folder / LABELS_FILE, ("video", "label"))}


def write_labels(folder: Path, labels: Mapping[str, str]) -> Path:
    """Write labels.csv."""
    return _write(folder / LABELS_FILE, ("video", "label"), sorted(labels.items()))


def read_decisions(folder: Path) -> dict[Pair, str]:
    """Return {(video id, video id): copy or different}."""
    rows = _read(folder / DECISIONS_FILE, ("first", "second", "decision"))
    return {(row["first"], row["second"]): row["decision"] for row in rows}


def write_decisions(folder: Path, decisions: Mapping[Pair, str]) -> Path:
    """Write copies.csv."""
    rows = [(first, second, decision) for (first, second), decision in sorted(decisions.items())]
    return _write(folder / DECISIONS_FILE, ("first", "second", "decision"), rows)


def _read(path: Path, columns: tuple[str, ...]) -> list[dict[str, str]]:
    if not path.is_file():
        return []
    names, rows = read_csv(path)
    if not set(columns) <= set(names):
        raise ValueError(f"{path} needs the columns {', '.join(columns)}; it has {', '.join(names)}")
    return [{name: unescape_cell(row[name] or "") for name in columns} for row in rows]


def _write(path: Path, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> Path:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([escape_cell(value) for value in row] for row in rows)
    write_text_atomic(path, text.getvalue())
    return path
