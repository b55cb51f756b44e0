"""A table of dataclass rows, stored as columns in one block of memory that worker processes share.

One Python object per row and field would cost 1.6 kB per video; here a video costs little more than its text.
"""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import accumulate, islice
from operator import eq
from typing import Any, Generic, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

Row = TypeVar("Row")
Array = NDArray[Any]
CHUNK_SIZE = 256  # rows that are converted together: few enough to stay in a core's cache
TYPE_CODES = {int: "q", float: "d"}


class ColumnTable(Sequence[Row], Generic[Row]):
    """Rows of a dataclass whose fields are str, int or float; a row object is made when it is asked for."""

    def __init__(self, row_type: type[Row], block: "ArrayBlock", rows: NDArray[np.int32]) -> None:
        self._row_type, self._block, self._rows = row_type, block, rows
        self._types: dict[str, Any] = {field.name: field.type for field in fields(row_type)}  # type: ignore[arg-type]

    def __len__(self) -> int:
        return len(self._rows)

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> "ColumnTable[Row]": ...
    def __getitem__(self, index: int | slice) -> "Row | ColumnTable[Row]":
        if isinstance(index, slice):
            return self.take(range(len(self))[index])
        row = int(self._rows[index])
        return self._row_type(*(self._values(name, [row])[0] for name in self._types))

    def __iter__(self) -> Iterator[Row]:
        for start in range(0, len(self), CHUNK_SIZE):
            rows = self._rows[start : start + CHUNK_SIZE]
            for values in zip(*(self._values(name, rows) for name in self._types), strict=True):
                yield self._row_type(*values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def column(self, name: str) -> list[Any]:
        """Return one field of every row, without making row objects."""
        return self._values(name, self._rows)

    def take(self, indices: Sequence[int]) -> "ColumnTable[Row]":
        """Return the rows at `indices`; their content is shared, not copied."""
        return ColumnTable(self._row_type, self._block, self._rows[np.asarray(indices, dtype=np.int64)])

    def _values(self, name: str, rows: Sequence[int] | NDArray[np.int32]) -> list[Any]:
        if self._types[name] is not str:
            return list(self._block[name][rows].tolist())
        text, ends = self._block[f"{name} text"], self._block[f"{name} ends"]
        positions = np.asarray(rows)
        bounds = zip(ends[positions].tolist(), ends[positions + 1].tolist(), strict=True)
        data = text.data
        return [str(data[start:end], "utf-8", "surrogateescape") for start, end in bounds]


class ColumnBuilder(Generic[Row]):
    """Collect columns chunk by chunk and build a table of them."""

    def __init__(self, row_type: type[Row]) -> None:
        self._row_type = row_type
        self._types: dict[str, Any] = {field.name: field.type for field in fields(row_type)}  # type: ignore[arg-type]
        self._columns: dict[str, array[Any]] = {}
        for name, kind in self._types.items():
            if kind is str:
                self._columns |= {f"{name} text": array("B"), f"{name} ends": array("q", [0])}
            else:
                self._columns[name] = array(TYPE_CODES[kind])
        self._num_rows = 0

    def add(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Append rows, given as one list of text per field; ValueError if a number is malformed."""
        for name, kind in self._types.items():
            if kind is not str:
                self._columns[name].extend(map(kind, columns[name]))
                continue
            joined = "".join(columns[name])
            values: Sequence[str | bytes] = columns[name] if joined.isascii() else list(map(encode_text, columns[name]))
            self._columns[f"{name} text"].frombytes(encode_text(joined))
            ends = self._columns[f"{name} ends"]
            ends.extend(islice(accumulate(map(len, values), initial=ends[-1]), 1, None))
        self._num_rows += len(next(iter(columns.values())))

    def add_parsed(self, columns: "Mapping[str, tuple[bytes, Array] | Array]") -> None:
        """Append rows, given as an array per number, and as all UTF-8 text and its lengths per field of text."""
        for name, kind in self._types.items():
            values = columns[name]
            if isinstance(values, np.ndarray):
                self._columns[name].frombytes(values.astype(TYPE_CODES[kind]).tobytes())
                num_rows = len(values)
            else:
                text, lengths = values
                ends = self._columns[f"{name} ends"]
                self._columns[f"{name} text"].frombytes(text)
                ends.frombytes((ends[-1] + np.cumsum(lengths, dtype=np.int64)).tobytes())
                num_rows = len(lengths)
        self._num_rows += num_rows

    def build(self) -> ColumnTable[Row]:
        """Return the table; the builder is empty afterwards."""
        return ColumnTable(self._row_type, ArrayBlock(self._columns), np.arange(self._num_rows, dtype=np.int32))


def encode_text(text: str) -> bytes:
    """Return the UTF-8 bytes; those of an undecodable name as they were."""
    return text.encode("utf-8", "surrogateescape")


class ArrayBlock:
    """Named arrays that worker processes share.

    Pickled for a worker process (torch's multiprocessing), they are moved into one block of shared memory, and only a
    handle of it is sent; pickled otherwise, the content is.
    """

    def __init__(self, arrays: "Mapping[str, array[Any]]") -> None:
        self._arrays = {name: np.asarray(one) for name, one in arrays.items()}
        self._layout: dict[str, tuple[str, int, int]] = {}  # name: (type code, byte offset, length)
        self._shared: Any = None  # torch.Tensor: torch is slow to import and needed only here

    def __getitem__(self, name: str) -> Array:
        return self._arrays[name]

    def __getstate__(self) -> dict[str, Any]:
        if self._shared is None:
            import torch

            size = 0
            for name, one in self._arrays.items():
                self._layout[name] = one.dtype.char, size, len(one)
                size += -(-one.nbytes // 8) * 8
            self._shared = torch.empty(size, dtype=torch.uint8).share_memory_()
            private, self._arrays = self._arrays, self._map()
            for name, one in private.items():
                self._arrays[name][:] = one
        return {"layout": self._layout, "shared": self._shared}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._layout, self._shared = state["layout"], state["shared"]
        self._arrays = self._map()

    def _map(self) -> dict[str, Array]:
        block = self._shared.numpy()
        return {
            name: np.frombuffer(block, dtype, length, offset) for name, (dtype, offset, length) in self._layout.items()
        }
