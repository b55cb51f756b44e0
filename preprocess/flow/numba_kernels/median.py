"""5 x 5 and 3 x 3 medians of a float plane with replicated borders, as OpenCV's `medianBlur`.

Sorted columns and merged pairs of columns are shared by neighboring windows; every step is a minimum or maximum along a
whole row, which LLVM vectorizes (plain numba, no intrinsics; see docs/concepts/flow-kernels.md).
Shapes: H x W pixels of a plane, n its row stride. All lists of values are ascending.
"""

import numpy as np
from numba import njit

from preprocess.flow.numba_kernels import JIT_OPTIONS as STRICT_OPTIONS

# There are no NaN: min and max become single instructions. Values are only moved, never rounded.
JIT_OPTIONS = {**STRICT_OPTIONS, "fastmath": {"nnan", "nsz"}}

BLOCK = 640  # columns per block, so that sorted columns have a constant stride and stay in the cache
LINE = BLOCK + 16  # that stride: two columns more on both sides, rounded up


@njit(**JIT_OPTIONS)
def median_(source: np.ndarray, target: np.ndarray, height: int, width: int, stride: int, size: int) -> None:
    """Write the `size` x `size` median (3 or 5) of plane `source` (H * n) into `target` (H * n)."""
    columns, pairs = np.empty(5 * LINE, np.float32), np.empty(10 * LINE, np.float32)
    for begin in range(0, width, BLOCK):
        end = min(begin + BLOCK, width)
        first, last = max(begin - 2, 0), min(end + 2, width)  # columns in the windows of this block
        start, count = first - begin + 2, end - begin + 4  # their offset in `columns`, number with borders
        for y in range(height):
            if size == 5:
                _sort_columns5_(source, columns, y, height, stride, first, last, start)
            else:
                _sort_columns3_(source, columns, y, height, stride, first, last, start)
            _replicate_(columns, start, start + last - first, count)
            out = target[y * stride + begin : y * stride + end]
            if size == 5:
                _merge_pairs_(columns, pairs, count - 1)
                _median_of_columns5_(columns, pairs, out)
            else:
                _median_of_columns3_(columns, out)


@njit(**JIT_OPTIONS)
def _sort_columns5_(
    source: np.ndarray, columns: np.ndarray, y: int, height: int, stride: int, first: int, last: int, start: int
) -> None:
    """Sort rows y - 2 ... y + 2 of columns `first` ... `last` into lines 0-4."""
    a = _row(source, max(y - 2, 0), stride, first, last)
    b = _row(source, max(y - 1, 0), stride, first, last)
    c = _row(source, y, stride, first, last)
    d = _row(source, min(y + 1, height - 1), stride, first, last)
    e = _row(source, min(y + 2, height - 1), stride, first, last)
    out = columns[start:]
    for x in range(last - first):
        v0, v1, v2, v3, v4 = _sort5(a[x], b[x], c[x], d[x], e[x])
        out[x] = v0
        out[x + LINE] = v1
        out[x + 2 * LINE] = v2
        out[x + 3 * LINE] = v3
        out[x + 4 * LINE] = v4


@njit(**JIT_OPTIONS)
def _sort_columns3_(
    source: np.ndarray, columns: np.ndarray, y: int, height: int, stride: int, first: int, last: int, start: int
) -> None:
    """Sort rows y - 1 ... y + 1 of columns `first` ... `last` into lines 0-2."""
    a = _row(source, max(y - 1, 0), stride, first, last)
    b = _row(source, y, stride, first, last)
    c = _row(source, min(y + 1, height - 1), stride, first, last)
    out = columns[start:]
    for x in range(last - first):
        v0, v1, v2 = _sort3(a[x], b[x], c[x])
        out[x] = v0
        out[x + LINE] = v1
        out[x + 2 * LINE] = v2


@njit(**JIT_OPTIONS)
def _row(plane: np.ndarray, y: int, stride: int, first: int, last: int) -> np.ndarray:
    return plane[y * stride + first : y * stride + last]


@njit(**JIT_OPTIONS)
def _replicate_(columns: np.ndarray, start: int, stop: int, count: int) -> None:
    """Replicate the first and last column of the image to columns 0 ... start and stop ... count."""
    for k in range(5):
        for x in range(start):
            columns[k * LINE + x] = columns[k * LINE + start]
        for x in range(stop, count):
            columns[k * LINE + x] = columns[k * LINE + stop - 1]


@njit(**JIT_OPTIONS)
def _merge_pairs_(columns: np.ndarray, pairs: np.ndarray, count: int) -> None:
    """Merge the sorted columns x and x + 1 to 10 sorted values (Batcher's odd-even merge)."""
    for x in range(count):
        a0, a1, a2, a3, a4 = _column(columns, x)
        b0, b1, b2, b3, b4 = _column(columns, x + 1)
        e0, e1, e2, e3, e4, e5 = _merge3(a0, a2, a4, b0, b2, b4)
        o0, o1, o2, o3 = _merge2(a1, a3, b1, b3)
        pairs[x] = e0
        pairs[x + LINE], pairs[x + 2 * LINE] = min(e1, o0), max(e1, o0)
        pairs[x + 3 * LINE], pairs[x + 4 * LINE] = min(e2, o1), max(e2, o1)
        pairs[x + 5 * LINE], pairs[x + 6 * LINE] = min(e3, o2), max(e3, o2)
        pairs[x + 7 * LINE], pairs[x + 8 * LINE] = min(e4, o3), max(e4, o3)
        pairs[x + 9 * LINE] = e5


@njit(**JIT_OPTIONS)
def _median_of_columns5_(columns: np.ndarray, pairs: np.ndarray, out: np.ndarray) -> None:
    """Write the median of each 5 x 5 window, from the pairs of columns at x and x + 2 and the column at x + 4."""
    for x in range(out.size):
        a = _pair(pairs, x)
        b = _pair(pairs, x + 2)
        # Of these 20 values, only those of rank 8 to 13 can be the median of all 25. The minimum of one list and the
        # reversed other one is a bitonic list of the 10 lower values; splitting it again leaves the upper 5 of them.
        low = _highest3(
            max(min(a[0], b[9]), min(a[5], b[4])),
            max(min(a[1], b[8]), min(a[6], b[3])),
            max(min(a[2], b[7]), min(a[7], b[2])),
            max(min(a[3], b[6]), min(a[8], b[1])),
            max(min(a[4], b[5]), min(a[9], b[0])),
        )
        high = _lowest3(
            min(max(a[0], b[9]), max(a[5], b[4])),
            min(max(a[1], b[8]), max(a[6], b[3])),
            min(max(a[2], b[7]), max(a[7], b[2])),
            min(max(a[3], b[6]), max(a[8], b[1])),
            min(max(a[4], b[5]), max(a[9], b[0])),
        )
        c0, c1, c2, c3, c4 = _column(columns, x + 4)
        # The sixth of two sorted lists of 6 and 5 values.
        median = min(max(low[0], c4), max(low[1], c3))
        median = min(median, min(max(low[2], c2), max(high[0], c1)))
        out[x] = min(median, min(max(high[1], c0), high[2]))


@njit(**JIT_OPTIONS)
def _median_of_columns3_(columns: np.ndarray, out: np.ndarray) -> None:
    """Write the median of each 3 x 3 window: of the largest minimum, the median median and the smallest maximum."""
    low, middle, high = columns[1:], columns[LINE + 1 :], columns[2 * LINE + 1 :]
    for x in range(out.size):
        a = max(max(low[x], low[x + 1]), low[x + 2])
        _, b, _ = _sort3(middle[x], middle[x + 1], middle[x + 2])
        c = min(min(high[x], high[x + 1]), high[x + 2])
        _, out[x], _ = _sort3(a, b, c)


@njit(**JIT_OPTIONS)
def _column(columns: np.ndarray, x: int) -> tuple[float, ...]:
    return columns[x], columns[x + LINE], columns[x + 2 * LINE], columns[x + 3 * LINE], columns[x + 4 * LINE]


@njit(**JIT_OPTIONS)
def _pair(pairs: np.ndarray, x: int) -> tuple[float, ...]:
    return _column(pairs, x) + _column(pairs, x + 5 * LINE)


@njit(**JIT_OPTIONS)
def _sort3(a: float, b: float, c: float) -> tuple[float, ...]:
    low, high = min(a, b), max(a, b)
    middle = max(low, c)
    return min(low, c), min(middle, high), max(middle, high)


@njit(**JIT_OPTIONS)
def _sort5(a: float, b: float, c: float, d: float, e: float) -> tuple[float, ...]:
    a, b = min(a, b), max(a, b)
    d, e = min(d, e), max(d, e)
    c, e = min(c, e), max(c, e)
    c, d = min(c, d), max(c, d)
    a, d = min(a, d), max(a, d)
    a, c = min(a, c), max(a, c)
    b, e = min(b, e), max(b, e)
    b, d = min(b, d), max(b, d)
    return a, min(b, c), max(b, c), d, e


@njit(**JIT_OPTIONS)
def _merge2(a0: float, a1: float, b0: float, b1: float) -> tuple[float, ...]:
    middle, other = max(a0, b0), min(a1, b1)
    return min(a0, b0), min(middle, other), max(middle, other), max(a1, b1)


@njit(**JIT_OPTIONS)
def _merge3(a0: float, a1: float, a2: float, b0: float, b1: float, b2: float) -> tuple[float, ...]:
    e0, e1, e2, e3 = _merge2(a0, a2, b0, b2)
    o0, o1 = min(a1, b1), max(a1, b1)
    return e0, min(e1, o0), max(e1, o0), min(e2, o1), max(e2, o1), e3


@njit(**JIT_OPTIONS)
def _highest3(a: float, b: float, c: float, d: float, e: float) -> tuple[float, ...]:
    """Return the three highest of five values."""
    low = max(min(a, b), min(c, d))  # drops the lowest of four
    middle, high = min(max(a, b), max(c, d)), max(max(a, b), max(c, d))
    low, middle = min(low, middle), max(low, middle)
    low = max(low, e)
    low, middle = min(low, middle), max(low, middle)
    return low, min(middle, high), max(middle, high)


@njit(**JIT_OPTIONS)
def _lowest3(a: float, b: float, c: float, d: float, e: float) -> tuple[float, ...]:
    """Return the three lowest of five values."""
    high = min(max(a, b), max(c, d))  # drops the highest of four
    low, middle = min(min(a, b), min(c, d)), max(min(a, b), min(c, d))
    middle, high = min(middle, high), max(middle, high)
    high = min(high, e)
    middle, high = min(middle, high), max(middle, high)
    return min(low, middle), max(low, middle), high
