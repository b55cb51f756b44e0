"""Which queries a gallery shows: some of every class, and of each some that were helped, hurt, right and wrong."""

import random
from collections.abc import Sequence
from itertools import zip_longest
from typing import Literal

Outcome = Literal["improved", "hurt", "right", "wrong"]


def outcome(before: bool, after: bool) -> Outcome:
    """What became of a query whose nearest neighbor was right or wrong before, and after."""
    if before == after:
        return "right" if after else "wrong"
    return "improved" if after else "hurt"


def choose_queries(
    labels: Sequence[int], kinds: Sequence[str], number: int, *, always: Sequence[int] = (), seed: int = 0
) -> list[int]:
    """Up to `number` places of queries; `always` come first. `kinds` are outcomes, or several in one word.

    Classes take turns, and within a class its kinds do, so rare kinds are seen as long as there are any.
    """
    draw = random.Random(seed)
    buckets: dict[int, dict[str, list[int]]] = {}
    for place, (label, kind) in enumerate(zip(labels, kinds, strict=True)):
        if place not in always:
            buckets.setdefault(label, {}).setdefault(kind, []).append(place)
    by_class = []
    for label in sorted(buckets):
        columns = [draw.sample(places, len(places)) for _, places in sorted(buckets[label].items())]
        draw.shuffle(columns)
        by_class.append([place for row in zip_longest(*columns) for place in row if place is not None])
    turns = [place for row in zip_longest(*by_class) for place in row if place is not None]
    return [*always, *turns[: max(0, number - len(always))]]
