"""How far a percentage could move if other videos had been filmed: a bootstrap over sources."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

NUM_RESAMPLES = 1000
LEVEL = 0.95
Interval = tuple[float, float]


def bootstrap_interval(
    hits: Tensor, sources: Sequence[str], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> Interval:
    """The 95% percentile interval of 100 * hits.mean(), drawing whole sources with replacement.

    Sibling clips of one source succeed and fail together, so drawing single videos would promise too much. Where
    every video is its own source the two are the same.
    """
    sums, counts = totals_by_source(hits, sources)
    rng = np.random.default_rng(seed)
    means = np.empty(num_resamples)
    for i in range(num_resamples):
        drawn = rng.integers(len(sums), size=len(sums))
        means[i] = sums[drawn].sum() / counts[drawn].sum()
    low, high = np.quantile(100 * means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def totals_by_source(hits: Tensor, sources: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Sum of hits and number of videos of each source, sources in the order of their names."""
    place = {source: i for i, source in enumerate(sorted(set(sources)))}
    numbers = [place[source] for source in sources]
    sums, counts = np.zeros(len(place)), np.zeros(len(place))
    np.add.at(sums, numbers, hits.numpy().astype(np.float64))
    np.add.at(counts, numbers, 1)
    return sums, counts
