"""Split blocks of a CSV table into cells with numpy: a store of 240,000 videos should open in a second.

Only plain blocks are taken: text in quotes, without quotes, commas or line ends inside; numbers bare. That is how
`records` writes nearly all rows. The module `csv` reads the other blocks.
"""

from collections.abc import Iterator, Sequence
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 1 << 20  # bytes: large enough for numpy, small beside the table
QUOTE, COMMA, NEWLINE, MINUS, ZERO = b'",\n-0'
MAX_DIGITS = 19  # of an int64
Positions = NDArray[np.int64]


def read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of the file in blocks of whole rows: a line end within quotes ends no row."""
    while block := file.read(BLOCK_SIZE):
        block += file.readline()
        while block.count(b'"') % 2 and (more := file.read(BLOCK_SIZE)):
            block += more + file.readline()
        yield block


def split_plain(block: bytes, is_text: Sequence[bool]) -> tuple[Positions, Positions] | None:
    """Return the first byte and the end of every cell without its quotes, (rows, columns) each; None if not plain."""
    num_rows, num_columns = block.count(b"\n"), len(is_text)
    if not block.endswith(b"\n") or b"\r" in block or block.count(b'"') != 2 * num_rows * sum(is_text):
        return None
    data = np.frombuffer(block, np.uint8)
    stops = np.flatnonzero((data == COMMA) | (data == NEWLINE))
    if len(stops) != num_rows * num_columns or (data[stops[num_columns - 1 :: num_columns]] != NEWLINE).any():
        return None
    starts = np.concatenate([[0], stops[:-1] + 1]).reshape(num_rows, num_columns)
    ends = stops.reshape(num_rows, num_columns)
    text = np.flatnonzero(is_text)
    first, last = starts[:, text], ends[:, text] - 1
    if (data[first] != QUOTE).any() or (data[last] != QUOTE).any() or (first >= last).any():
        return None
    starts[:, text] += 1
    ends[:, text] -= 1
    return starts, ends


def cut_cells(block: bytes, starts: Positions, ends: Positions) -> list[bytes]:
    """Return the content of some cells."""
    return [block[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def join_cells(block: bytes, starts: Positions, ends: Positions) -> bytes:
    """Return the content of some cells without anything between."""
    lengths = ends - starts
    if lengths[0] > 0 and (lengths == lengths[0]).all():  # hashes: five times as fast
        windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(block, np.uint8), int(lengths[0]))
        return windows[starts].tobytes()
    return b"".join(cut_cells(block, starts, ends))


def parse_floats(block: bytes, starts: Positions, ends: Positions) -> NDArray[np.float64] | None:
    """Return the numbers of some cells; None if one is malformed."""
    try:
        return np.fromiter(map(float, cut_cells(block, starts, ends)), np.float64, len(starts))
    except ValueError:
        return None


def parse_integers(block: bytes, starts: Positions, ends: Positions) -> NDArray[np.int64] | None:
    """Return the numbers of cells with at least one digit and perhaps a minus; None if one has something else."""
    data = np.frombuffer(block, np.uint8)
    negative = data[starts] == MINUS
    num_digits = ends - starts - negative
    if num_digits.min() < 1 or num_digits.max() > MAX_DIGITS:
        return None
    values, last = np.zeros(len(starts), np.uint64), ends - 1  # 19 digits fit into 64 bits without a sign
    for place in range(int(num_digits.max())):
        digits = data[last] - ZERO  # below 0 wraps around to above 9
        if place >= num_digits.min():
            digits = np.where(num_digits > place, digits, 0)
        if digits.max() > 9:
            return None
        values += np.multiply(digits, 10**place, dtype=np.uint64)
        last -= 1
    if values.max() > np.iinfo(np.int64).max:
        return None
    return np.where(negative, -values.astype(np.int64), values.astype(np.int64))
