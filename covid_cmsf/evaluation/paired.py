"""Compare two methods on the same queries: paired difference, interval, repaired and broken queries.

The methods answer the same queries, so most of what makes a query hard or easy cancels in the difference. Sources are
resampled, not queries, because clips of one source are alike; with several seeds, seeds are resampled as well, crossed
with sources (a bootstrap over two factors, Owen 2007). Three seeds are few: such an interval is rather too narrow.

Over several splits the difference is the mean of those of the splits. Sources are resampled within their split; a seed
is drawn for all splits at once, because its runs begin with the same weights.
"""

# S seeds, Q queries, G sources, R resamples, P splits

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.evaluation.results import LEVEL, Interval

NUM_RESAMPLES = 10_000
MANY_SOURCES = 1000  # above, sources that are alike are drawn together
MAX_DRAWS = 2**24  # numbers at a time: 128 MB
Hits = NDArray[np.bool_]


@dataclass(frozen=True)
class PairedDifference:
    """Two methods on the same queries, in percent; the difference is the second minus the first, in points."""

    first: float
    second: float
    difference: float
    interval: Interval  # of the difference, 95%, resampling sources and seeds
    p_value: float  # two-sided, of no difference, from the same resamples
    repaired: float  # queries that only the second gets right: mean number over seeds, sum over splits
    broken: float  # queries that only the first gets right
    num_queries: int  # sum over splits
    num_sources: int
    num_seeds: int
    num_splits: int = 1

    @property
    def verdict(self) -> str:
        """Say in words what the interval allows to say."""
        return describe_difference(self.difference, self.p_value)


@dataclass(frozen=True)
class PairedHits:
    """What two methods got right on the same queries of one split."""

    first: Hits  # (S, Q)
    second: Hits  # (S, Q); row i of both is the same seed
    sources: Sequence[str]  # (Q,)


def paired_difference(
    first: Hits, second: Hits, sources: Sequence[str], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> PairedDifference:
    """Compare hits (S, Q) or (Q,) of two methods on the same queries, whose sources are given.

    A method without seeds is compared with every seed of the other. Otherwise row i of both is the same seed.
    """
    one = PairedHits(*_same_seeds(np.atleast_2d(first), np.atleast_2d(second), len(sources)), sources)
    return difference_over_splits([one], num_resamples=num_resamples, seed=seed)


def difference_over_splits(
    splits: Sequence[PairedHits], *, num_resamples: int = NUM_RESAMPLES, seed: int = 0
) -> PairedDifference:
    """Compare two methods over splits, each of which counts the same; all have the same number of seeds."""
    num_seeds = {len(one.first) for one in splits} | {len(one.second) for one in splits}
    if len(num_seeds) != 1:
        raise ValueError(f"the splits have different numbers of seeds: {sorted(num_seeds)}")
    totals = [
        _totals_by_source(one.second.astype(np.float64) - one.first.astype(np.float64), one.sources) for one in splits
    ]
    drawn = resampled_differences(totals, num_resamples=num_resamples, seed=seed)
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    tail = min((drawn <= 0).sum(), (drawn >= 0).sum())
    first, second = (
        100 * float(np.mean([hits.mean() for hits in both]))
        for both in ([one.first for one in splits], [one.second for one in splits])
    )
    return PairedDifference(
        first=first,
        second=second,
        difference=second - first,
        interval=(float(low), float(high)),
        p_value=float(min(1.0, 2 * (tail + 1) / (num_resamples + 1))),
        repaired=float(sum((one.second & ~one.first).sum(1).mean() for one in splits)),
        broken=float(sum((one.first & ~one.second).sum(1).mean() for one in splits)),
        num_queries=sum(len(one.sources) for one in splits),
        num_sources=sum(len(counts) for _, counts in totals),
        num_seeds=num_seeds.pop(),
        num_splits=len(splits),
    )


Totals = tuple[NDArray[np.float64], NDArray[np.float64]]  # sums (S, G) of differences, numbers (G,) of queries


def resampled_differences(totals: Sequence[Totals], *, num_resamples: int, seed: int) -> NDArray[np.float64]:
    """Return (R,) mean differences in points, for the totals by source of every split."""
    rng = np.random.default_rng(seed)
    num_seeds = len(totals[0][0])
    drawn = [_resampled_totals(*one, num_resamples=num_resamples, rng=rng) for one in totals]
    seeds = rng.multinomial(num_seeds, np.full(num_seeds, 1 / num_seeds), size=num_resamples)  # (R, S)
    differences = [(sums * seeds).sum(1) / (num_seeds * counts) for sums, counts in drawn]
    result: NDArray[np.float64] = 100 * np.mean(differences, axis=0)
    return result


def _resampled_totals(
    sums: NDArray[np.float64], counts: NDArray[np.float64], *, num_resamples: int, rng: np.random.Generator
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the sums (R, S) and the numbers of queries (R,) of sources drawn with replacement.

    Of many sources most are alike: an image is a source of its own, and right or wrong in each seed. They are drawn by
    kind then, which is the same in distribution; drawing 50,000 one by one takes minutes.
    """
    num_sources, alike = len(counts), np.ones(len(counts), dtype=np.int64)
    if num_sources > MANY_SOURCES:
        table, alike = np.unique(np.vstack([sums, counts]), axis=1, return_counts=True)
        sums, counts = table[:-1], table[-1]
    parts = []
    for start in range(0, num_resamples, chunk := max(1, MAX_DRAWS // len(counts))):
        drawn = rng.multinomial(num_sources, alike / num_sources, size=min(chunk, num_resamples - start))  # (r, G)
        parts.append((drawn @ sums.T, drawn @ counts))
    return np.concatenate([one for one, _ in parts]), np.concatenate([one for _, one in parts])


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


def _totals_by_source(differences: NDArray[np.float64], sources: Sequence[str]) -> Totals:
    """Return the sums (S, G) of differences (S, Q) and the numbers (G,) of queries by source, sorted by name."""
    names, index = np.unique(np.asarray(sources), return_inverse=True)
    sums = np.stack([np.bincount(index, weights=row, minlength=len(names)).astype(np.float64) for row in differences])
    return sums, np.bincount(index, minlength=len(names)).astype(np.float64)
