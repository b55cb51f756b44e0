"""Float64 computations over the rows of large fp32 tensors in chunks, without a float64 copy of all rows.

Up to `CHUNK_VALUES` values there is one chunk, and results have the same bits as the direct formulas.
"""

# N rows, D columns

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

CHUNK_VALUES = 1 << 25  # 268 MB in float64


def row_chunks(num_rows: int, num_columns: int) -> Iterator[slice]:
    """Yield slices of consecutive rows with at most CHUNK_VALUES values each."""
    size = max(1, CHUNK_VALUES // max(1, num_columns))
    for start in range(0, num_rows, size):
        yield slice(start, min(start + size, num_rows))


def map_rows(values: Tensor, transform: Callable[[Tensor], Tensor], *, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return `transform` of the rows of (N, D) values in float64, chunk by chunk, as `dtype`."""
    out = torch.empty(values.shape, dtype=dtype)
    for rows in row_chunks(*values.shape):
        out[rows] = transform(values[rows].double())
    return out


def mean_and_variance(
    values: Tensor, *, correction: int = 0, transform: Callable[[Tensor], Tensor] = lambda rows: rows
) -> tuple[Tensor, Tensor]:
    """Return mean (D,) and variance (D,) of the rows of `transform(values)`, float64, in two passes."""
    chunks = list(row_chunks(*values.shape))
    if len(chunks) == 1:
        transformed = transform(values.double())
        return transformed.mean(0), transformed.var(0, correction=correction)
    mean = column_mean(values, transform=transform)
    squares = torch.zeros_like(mean)
    for rows in chunks:
        squares += (transform(values[rows].double()) - mean).square().sum(0)
    return mean, squares / (len(values) - correction)


def column_mean(values: Tensor, *, transform: Callable[[Tensor], Tensor] = lambda rows: rows) -> Tensor:
    """Return the mean (D,) of the rows of `transform(values)`, float64."""
    chunks = list(row_chunks(*values.shape))
    if len(chunks) == 1:
        return transform(values.double()).mean(0)
    total = torch.zeros(values.shape[1], dtype=torch.float64)
    for rows in chunks:
        total += transform(values[rows].double()).sum(0)
    return total / len(values)
