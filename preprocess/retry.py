"""When to look again at a video that another process is converting."""

import heapq
from typing import Generic, TypeVar

T = TypeVar("T")
FIRST_SECONDS, LONGEST_SECONDS = 0.25, 5.0


class RetryQueue(Generic[T]):
    """Items with a time to try them again: after 0.25 s, then after twice as long each time, at most after 5 s.

    Looking costs reads of a disk that may be on the network, and a video takes seconds to minutes.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, T]] = []
        self._delays: dict[str, float] = {}
        self._count = 0  # orders items of the same time

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, key: str, item: T, now: float) -> None:
        """Put an item off; `key` names it, so that its delay grows from one time to the next."""
        delay = self._delays.get(key, FIRST_SECONDS)
        self._delays[key] = min(2 * delay, LONGEST_SECONDS)
        self._count += 1
        heapq.heappush(self._heap, (now + delay, self._count, item))

    def due(self, now: float) -> list[T]:
        """Remove and return the items whose time has come."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found
