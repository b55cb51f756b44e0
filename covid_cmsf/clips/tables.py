"""CSV tables of a clip store: UTF-8 with a header, read some hundred rows at a time.

Text that a spreadsheet would take for a formula has a ' in front, which is taken off when it is read.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from covid_cmsf.clips.columns import CHUNK_SIZE
from covid_cmsf.clips.plain_csv import read_blocks
from covid_cmsf.files import atomic_path, escape_cell, unescape_cell

NAME_COLUMNS = {"video_id", "source", "class_name", "reason"}  # text that may begin with = + - @
Columns = dict[str, list[str]]


@contextmanager
def open_table(
    path: Path, required: Iterable[str], optional: Iterable[str] = ()
) -> Iterator[tuple[list[str], BinaryIO]]:
    """Yield the names of the columns, and the file after its header; ValueError if the columns are others."""
    if not path.is_file():
        raise FileNotFoundError(f"no table {path}")
    with path.open("rb") as file:
        names = next(_csv_rows(file.readline(), path, line=1), [])
        if not set(required) <= set(names) <= {*required, *optional} or len(set(names)) != len(names):
            raise ValueError(f"{path}: columns are {names}, expected {list(required)}")
        yield names, file


def read_columns(path: Path, names: Sequence[str]) -> Iterator[tuple[int, Columns]]:
    """Yield (number of the first row, {column: values}) for some hundred rows at a time."""
    with open_table(path, names) as (found, file):
        row = 2
        for block in read_blocks(file):
            for columns in parse_block(block, found, path, first_row=row):
                yield row, columns
                row += len(columns[found[0]])


def parse_block(block: bytes, names: Sequence[str], path: Path, *, first_row: int) -> Iterator[Columns]:
    """Yield {column: values} for some hundred rows of a block at a time; `first_row` is the number of its first."""
    rows, number = filter(None, _csv_rows(block, path, line=first_row)), first_row
    while chunk := list(islice(rows, CHUNK_SIZE)):
        malformed = next((i for i, row in enumerate(chunk) if len(row) != len(names)), None)
        if malformed is not None:
            raise ValueError(f"{path}, row {number + malformed}: wrong number of columns")
        columns = dict(zip(names, map(list, zip(*chunk, strict=True)), strict=True))
        for name in NAME_COLUMNS & columns.keys():
            if "'" in "".join(columns[name]):  # rare, and asked at once: a store may have a million rows
                columns[name] = list(map(unescape_cell, columns[name]))
        yield columns
        number += len(chunk)


def _csv_rows(block: bytes, path: Path, *, line: int) -> Iterator[list[str]]:
    reader = csv.reader(io.StringIO(block.decode("utf-8", "surrogateescape"), newline=""))
    try:
        yield from reader
    except csv.Error as error:
        raise ValueError(f"{path}, line {line + reader.line_num - 1}: {error}") from None


def write_rows(path: Path, columns: list[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table under a temporary name, then rename it."""
    with (
        atomic_path(path) as temporary,
        temporary.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file,
    ):
        # All text is quoted: csv does not quote a lone carriage return in a name, and then can't read it back.
        writer = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(columns)
        writer.writerows(map(escape_cell, row) for row in rows)
