"""The number of rows of manifest.csv, in `tables.json` beside it: a table cut at a line's end looks whole otherwise.

While the table is replaced, both numbers are in the file, so that a kill between the two leaves a store that opens.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from covid_cmsf.files import read_json, write_text_atomic

COUNTS_FILE = "tables.json"


def read_counts(table: Path) -> list[int]:
    """Return the numbers of rows that a table may have; empty if they are unknown (a store of an older version)."""
    path = table.with_name(COUNTS_FILE)
    if not path.exists():
        return []
    try:
        counts = read_json(path).get(table.name, [])
        return [int(count) for count in counts]
    except (ValueError, TypeError, AttributeError, OverflowError) as error:  # the last one: of infinity
        raise ValueError(f"{path} is damaged ({error}); remove it if {table.name} is whole") from None


@contextmanager
def recorded_count(table: Path, count: int) -> Iterator[None]:
    """Write the number of rows of a table that is replaced within the block."""
    write_counts(table, sorted({*read_counts(table), count}) if table.exists() else [count])
    yield
    write_counts(table, [count])


def write_counts(table: Path, counts: list[int]) -> None:
    """Write the numbers of rows that a table may have."""
    write_text_atomic(table.with_name(COUNTS_FILE), json.dumps({table.name: counts}) + "\n")


def count_error(table: Path, count: int) -> str | None:
    """Return what is wrong with a table of `count` rows; None if nothing is."""
    counts = read_counts(table)
    if not counts or count in counts:
        return None
    written = " or ".join(map(str, counts))
    return (
        f"{table} has {count} rows, {written} were written: it was cut or edited. The `covid-cmsf preprocess` that "
        f"made the store writes it again; if the change is intended, remove {COUNTS_FILE}"
    )
