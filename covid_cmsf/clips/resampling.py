"""A fixed frame rate from frames at any times: for every moment of the new rate, the frame nearest to it.

Nearest rather than the frame that a player shows then: times in files are rounded, to milliseconds in WebM, and a frame
that is late by a fraction of one would be dropped and its predecessor repeated.
"""

import math
from collections.abc import Iterable, Iterator
from typing import TypeVar

Item = TypeVar("Item")
MAX_GAP = 600.0  # seconds between two frames; a longer one is a wrong time stamp rather than a still picture
TOLERANCE = 1e-6  # frames of the new rate: rounding errors do not decide a tie


def resample(
    timed: Iterable[tuple[Item, float]], *, fps: float, start: float = 0.0, end: float = math.inf, last_duration: float
) -> Iterator[Item]:
    """Yield the item nearest in time to start + i / fps for i = 0, 1, ..., of two equally near ones the earlier.

    Args:
        timed: items and their times in seconds, in ascending order.
        fps: items per second of the result.
        start: time of the first item of the result.
        end: the result ends here, rounded to a whole number of items.
        last_duration: seconds that the last item lasts, if `end` is not before.
    """
    count = 0  # items of the result so far
    previous: tuple[Item, float] | None = None
    for item, time in timed:
        if previous is not None:
            if time - previous[1] > MAX_GAP:
                raise ValueError(f"the time stamps jump by {time - previous[1]:.0f} s; it can't be resampled")
            middle = ((time + previous[1]) / 2 - start) * fps
            while count <= middle + TOLERANCE:
                yield previous[0]
                count += 1
        previous = item, time
    if previous is not None:
        last = (min(end, previous[1] + last_duration) - start) * fps
        while count <= last - 0.5 + TOLERANCE or count == 0:  # at least half of it is before the end
            yield previous[0]
            count += 1
