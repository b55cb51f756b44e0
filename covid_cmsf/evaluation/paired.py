"""Compare two methods on the same queries: paired difference, interval, repaired and broken queries.

The methods answer the same queries, so most of what makes a query hard or easy cancels in the difference. Sources are
resampled, not queries, because clips of one source are alike; with several seeds, seeds are resampled as well, crossed
with sources (a bootstrap over two factors, Owen 2007). Three seeds are few: such an interval is rather too narrow.
"""

# S seeds, Q queries, G sources, R resamples

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.evaluation.results import LEVEL, Interval

NUM_RESAMPLES = 10_000
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class PairedDifference:
    """Two methods on the same queries, in percent; the difference is the second minus the first, in points."""

    first: float
    second: float
    difference: float
    interval: Interval  # of the difference, 95%, resampling sources and seeds
    p_value: float  # two-sided, of no difference, from the same resamples
    repaired: float  # queries that only the second gets right: mean number over seeds
    broken: float  # queries that only the first gets right
    num_queries: int
    num_sources: int
    num_seeds: int

    @property
    def verdict(self) -> str:
        """Say in words what the interval allows to say."""
        return describe_difference(self.difference, self.p_value)


def paired_difference(
    first: Hits, second: Hits, sources: Sequence[str], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> PairedDifference:
    """Compare hits (S, Q) or (Q,) of two methods on the same queries, whose sources are given.

    A method without seeds is compared with every seed of the other. Otherwise row i of both is the same seed.
    """
    first, second = _same_seeds(np.atleast_2d(first), np.atleast_2d(second), len(sources))
    sums, counts = _totals_by_source(second.astype(np.float64) - first.astype(np.float64), sources)
    drawn = resampled_differences(sums, counts, num_resamples=num_resamples, seed=seed)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min((drawn <= 0).sum(), (drawn >= 0).sum())
    return PairedDifference(
        first=100 * float(first.mean()),
        second=100 * float(second.mean()),
        difference=100 * float(second.mean() - first.mean()),
        interval=(float(low), float(high)),
        p_value=float(min(1.0, 2 * (tail + 1) / (num_resamples + 1))),
        repaired=float((second & ~first).sum(1).mean()),
        broken=float((first & ~second).sum(1).mean()),
        num_queries=len(sources),
        num_sources=len(counts),
        num_seeds=len(first),
    )


def resampled_differences(
    sums: NDArray[np.float64], counts: NDArray[np.float64], *, num_resamples: int, seed: int
) -> NDArray[np.float64]:
    """Return (R,) mean differences in points, for sums of differences (S, G) and numbers of queries (G,) by source."""
    num_seeds, num_sources = sums.shape
    rng = np.random.default_rng(seed)
    sources = rng.multinomial(num_sources, np.full(num_sources, 1 / num_sources), size=num_resamples)  # (R, G)
    seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=num_resamples)  # (R, S)
    totals = np.einsum("rg,sg,rs->r", sources, sums, seeds, optimize=True)
    result: NDArray[np.float64] = 100 * totals / (num_seeds * (sources @ counts))
    return result


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Return p values corrected for the number of comparisons (Holm 1979): the chance of any false one stays 5%."""
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda one: p_values[one])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[name]))
        corrected[name] = largest
    return {name: corrected[name] for name in p_values}


def describe_difference(difference: float, p_value: float) -> str:
    """Say `better`, `worse` or `no difference shown`, at 5%."""
    if p_value >= 1 - LEVEL:
        return "no difference shown"
    return "better" if difference > 0 else "worse"


def _same_seeds(first: Hits, second: Hits, num_queries: int) -> tuple[Hits, Hits]:
    if first.shape[1] != num_queries or second.shape[1] != num_queries or num_queries == 0:
        raise ValueError(
            f"a paired comparison needs the same queries: {first.shape[1]} and {second.shape[1]} answers, "
            f"{num_queries} sources"
        )
    num_seeds = max(len(first), len(second))
    if any(len(one) not in (1, num_seeds) for one in (first, second)):
        raise ValueError(f"{len(first)} and {len(second)} seeds: give as many of both, or one")
    shape = (num_seeds, num_queries)
    return np.broadcast_to(first, shape), np.broadcast_to(second, shape)


def _totals_by_source(
    differences: NDArray[np.float64], sources: Sequence[str]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums (S, G) of differences (S, Q) and the numbers (G,) of queries by source, sorted by name."""
    names, index = np.unique(np.asarray(sources), return_inverse=True)
    sums = np.stack([np.bincount(index, weights=row, minlength=len(names)).astype(np.float64) for row in differences])
    return sums, np.bincount(index, minlength=len(names)).astype(np.float64)
