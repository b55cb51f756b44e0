"""Split blocks of a CSV table into cells with numpy: a store of 240,000 videos should open in a second.

Only plain blocks are taken: text in quotes, without quotes, commas or line ends inside; numbers bare. That is how
`records` writes nearly all rows. The module `csv` reads the other blocks.
"""

from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

BLOCK_SIZE = 1 << 20  # bytes: large enough for numpy, small beside the table
QUOTE, COMMA, NEWLINE, MINUS, DOT, SPACE, DELETE = b'",\n-. \x7f'
MAX_DIGITS = 19  # of an int64
MAX_EXACT = 1 << 53  # integers up to here are exact in float64, and so are powers of ten up to 10**22:
POWERS = np.array([float(10**place) for place in range(23)])  # then IEEE 754 rounds their quotient as `float` does
DIGIT_STEPS = (2561, 8, 0x00FF00FF00FF00FF), (6553601, 16, 0x0000FFFF0000FFFF), (42949672960001, 32, 0xFFFFFFFF)
Positions = NDArray[np.int64]
Digits = NDArray[np.uint64]


def read_blocks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the rest of the file in blocks of whole rows: a line end within quotes ends no row."""
    while block := file.read(BLOCK_SIZE):
        block += file.readline()
        while count_byte(block, QUOTE) % 2 and (more := file.read(BLOCK_SIZE)):
            block += more + file.readline()
        yield block


def count_byte(block: bytes, value: int) -> int:
    """Return how often a byte occurs; for a frequent one many times faster than `bytes.count`."""
    return int(np.count_nonzero(np.frombuffer(block, np.uint8) == value))


def split_plain(block: bytes, is_text: Sequence[bool]) -> tuple[Positions, Positions] | None:
    """Return the first byte and the end of every cell without its quotes, (rows, columns) each; None if not plain."""
    num_rows, num_columns = count_byte(block, NEWLINE), len(is_text)
    if not block.endswith(b"\n") or b"\r" in block or count_byte(block, QUOTE) != 2 * num_rows * sum(is_text):
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
    starts += is_text
    ends -= is_text
    return starts, ends


def is_printable(block: bytes, num_rows: int) -> bool:
    """Check that rows have nothing but printable ASCII, which is quickly said of a block as a whole."""
    data = np.frombuffer(block, np.uint8)
    return bool(data.max() < DELETE) and np.count_nonzero(data < SPACE) == num_rows


def cut_cells(block: bytes, starts: Positions, ends: Positions) -> list[bytes]:
    """Return the content of some cells."""
    return [block[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def join_cells(block: bytes, starts: Positions, ends: Positions) -> bytes:
    """Return the content of some cells without anything between."""
    lengths = ends - starts
    if lengths[0] > 0 and (lengths == lengths[0]).all():  # hashes: many times as fast
        return _windows(block, f"V{lengths[0]}")[starts].tobytes()
    return b"".join(cut_cells(block, starts, ends))


def _windows(block: bytes, dtype: str) -> NDArray[Any]:
    """Return the value that begins at each byte, without copying."""
    return np.ndarray((len(block) - np.dtype(dtype).itemsize + 1,), dtype, block, strides=(1,))


def parse_floats(block: bytes, starts: Positions, ends: Positions) -> NDArray[np.float64] | None:
    """Return the numbers of some cells; None if one is malformed."""
    values = _parse_decimals(block, starts, ends)
    if values is not None:
        return values
    try:
        return np.fromiter(map(float, cut_cells(block, starts, ends)), np.float64, len(starts))
    except ValueError:
        return None


def _parse_decimals(block: bytes, starts: Positions, ends: Positions) -> NDArray[np.float64] | None:
    """Return numbers that are written as digits, a dot and digits; None if one is not, or has too many digits."""
    data, dots = np.frombuffer(block, np.uint8), starts.copy()
    while (is_before := (data[dots] != DOT) & (dots < ends - 1)).any():
        dots += is_before
    if (data[dots] != DOT).any() or (places := ends - dots - 1).max() >= len(POWERS):
        return None
    whole, fraction = _parse_digits(block, starts, dots), _parse_digits(block, dots + 1, ends)
    if whole is None or fraction is None:
        return None
    if ((whole + 1).astype(np.float64) * POWERS[places]).max() > MAX_EXACT:
        return None
    mantissas = whole.astype(np.float64) * POWERS[places] + fraction.astype(np.float64)
    return np.asarray(mantissas / POWERS[places])


def parse_integers(block: bytes, starts: Positions, ends: Positions) -> NDArray[np.int64] | None:
    """Return the numbers of cells with at least one digit and perhaps a minus; None if one has something else."""
    negative = np.frombuffer(block, np.uint8)[starts] == MINUS
    values = _parse_digits(block, starts + negative, ends)
    if values is None or values.max() > np.iinfo(np.int64).max:
        return None
    signed = values.view(np.int64)
    return np.where(negative, -signed, signed) if negative.any() else signed


def _parse_digits(block: bytes, starts: Positions, ends: Positions) -> Digits | None:
    """Return the numbers of cells of 1 to 19 digits, eight digits at a time; None if one has something else."""
    lengths, first = ends - starts, ends - 8
    if lengths.min() < 1 or lengths.max() > MAX_DIGITS or first.min() < 0:
        return None
    words = _windows(block, "<u8")[first].astype(np.uint64, copy=False)
    words ^= 0x3030303030303030
    shift = np.maximum(64 - 8 * lengths, 0).view(np.uint64)  # the bytes before a cell become 0
    words >>= shift
    words <<= shift
    if ((words | (words + 0x7676767676767676)) & 0x8080808080808080).any():  # a byte above 9
        return None
    # The first digit is in the lowest byte: add neighbors to numbers of two, four and eight digits.
    for factor, width, mask in DIGIT_STEPS:
        words *= factor
        words >>= width
        words &= mask
    if (is_long := lengths > 8).any():
        higher = _parse_digits(block, starts[is_long], ends[is_long] - 8)
        if higher is None:
            return None
        words[is_long] += higher * 10**8
    return np.asarray(words)
