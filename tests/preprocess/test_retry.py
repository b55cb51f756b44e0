"""Videos that another process holds are looked at less and less often."""

from preprocess.retry import LONGEST_SECONDS, RetryQueue


def test_delays_double_up_to_a_limit() -> None:
    queue: RetryQueue[str] = RetryQueue()
    now, delays = 100.0, []
    for _ in range(8):
        queue.add("v", "video", now)
        before = now
        while not queue.due(now):
            now += 0.25
        delays.append(now - before)
    assert delays == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0] and delays[-1] == LONGEST_SECONDS


def test_items_come_back_once_in_the_order_of_their_time() -> None:
    queue: RetryQueue[str] = RetryQueue()
    for name in ("a", "b", "c"):
        queue.add(name, name, 0.0)
    queue.add("a", "again", 0.0)  # its second time: later
    assert queue.due(0.1) == [] and queue.due(0.3) == ["a", "b", "c"]
    assert len(queue) == 1 and queue.due(0.5) == ["again"] and not queue
