"""Leases: one holder at a time, the dead are replaced, the superseded notice."""

import json
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from preprocess.leases import Heartbeat, Leases


def age_leases(folder: Path, seconds: float) -> None:
    """Makes all leases look untouched for this long."""
    for path in folder.iterdir():
        old = path.stat().st_mtime - seconds
        os.utime(path, (old, old))


def pretend_other_machine(folder: Path) -> None:
    """Makes all leases look like those of another machine, so that only silence tells whether it is alive."""
    for path in folder.iterdir():
        times = path.stat().st_mtime
        path.write_text(json.dumps({**json.loads(path.read_text()), "machine": "elsewhere"}))
        os.utime(path, (times, times))


def test_a_living_holder_keeps_everyone_out(tmp_path: Path) -> None:
    first, second = Leases(tmp_path), Leases(tmp_path)
    lease = first.claim("v")
    assert lease is not None and lease.superseded_token is None
    assert second.claim("v") is None and first.claim("v") is None
    assert second.claim("w") is not None
    first.release(lease)
    assert second.claim("v") is not None


def test_a_silent_holder_elsewhere_is_superseded_and_notices(tmp_path: Path) -> None:
    slow, quick = Leases(tmp_path, seconds=60), Leases(tmp_path, seconds=60)
    old = slow.claim("v")
    assert old is not None
    pretend_other_machine(tmp_path)
    assert quick.claim("v") is None
    age_leases(tmp_path, 61)
    new = quick.claim("v")
    assert new is not None and new.superseded_token == old.token
    assert not slow.is_held(old) and quick.is_held(new)
    slow.heartbeat()
    slow.release(old)
    assert quick.is_held(new), "the old holder must not take the new lease away"
    quick.release(new)
    assert list(tmp_path.iterdir()) == []


def test_a_holder_that_was_swept_away_does_not_mistake_anothers_lease_for_its_own(tmp_path: Path) -> None:
    first, second, third = (Leases(tmp_path, seconds=60) for _ in range(3))
    old = first.claim("v")
    assert old is not None
    pretend_other_machine(tmp_path)
    age_leases(tmp_path, 61)
    assert second.remove_stale() == set()
    new = third.claim("v")
    assert new is not None and new.generation == old.generation
    assert third.is_held(new) and not first.is_held(old)
    first.release(old)
    assert third.is_held(new) and third.remove_stale() == {new.token}


def test_the_heartbeat_of_a_paused_holder_does_not_keep_anothers_dead_lease_alive(tmp_path: Path) -> None:
    paused, second, third = (Leases(tmp_path, seconds=60) for _ in range(3))
    assert paused.claim("v") is not None
    pretend_other_machine(tmp_path)
    age_leases(tmp_path, 61)
    second.remove_stale()
    new = second.claim("v")  # generations begin at 0 again: the same file name
    assert new is not None and new.generation == 0
    pretend_other_machine(tmp_path)
    age_leases(tmp_path, 61)  # the second process dies
    paused.heartbeat()
    assert third.claim("v") is not None


def test_a_heartbeat_survives_a_disk_that_hiccups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = Leases(tmp_path)
    leases.claim("v")

    def fail(path: Path) -> None:
        raise OSError(116, "Stale file handle")

    monkeypatch.setattr(os, "utime", fail)
    leases.heartbeat()


def test_a_heartbeat_keeps_a_lease_alive(tmp_path: Path) -> None:
    holder, other = Leases(tmp_path, seconds=3600), Leases(tmp_path, seconds=3600)
    assert holder.claim("v") is not None
    pretend_other_machine(tmp_path)
    age_leases(tmp_path, 7200)
    (path,) = tmp_path.iterdir()
    old = path.stat().st_mtime
    with Heartbeat(holder, interval=0.01):
        while path.stat().st_mtime == old:
            time.sleep(0.01)
        assert other.claim("v") is None
    age_leases(tmp_path, 7200)
    assert other.claim("v") is not None


def _claim_and_die(folder: Path) -> None:
    assert Leases(folder).claim("v") is not None
    os._exit(9)


def test_a_dead_process_of_this_machine_is_replaced_at_once(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=_claim_and_die, args=(tmp_path,))
    process.start()
    process.join()
    lease = Leases(tmp_path, seconds=3600).claim("v")
    assert lease is not None and lease.generation == 1


def _claim_many(
    folder: Path, barrier: "multiprocessing.synchronize.Barrier", won: "multiprocessing.Queue[str]"
) -> None:
    leases = Leases(folder, seconds=100)  # nobody beats a heart here: no lease may expire on a slow machine
    barrier.wait()
    for number in range(200):
        if leases.claim(f"k{number}") is not None:
            won.put(f"k{number}")
    barrier.wait()  # a winner that had ended would be dead, and its leases free


@pytest.mark.slow
@pytest.mark.parametrize("stale", [False, True])
def test_of_many_that_ask_at_once_exactly_one_wins(tmp_path: Path, stale: bool) -> None:
    if stale:  # everyone finds a dead holder's lease and wants to take over
        dead = Leases(tmp_path)
        for number in range(200):
            dead.claim(f"k{number}")
        pretend_other_machine(tmp_path)
        age_leases(tmp_path, 1000)
    context = multiprocessing.get_context("spawn")
    barrier, won = context.Barrier(4), context.Queue()
    processes = [context.Process(target=_claim_many, args=(tmp_path, barrier, won)) for _ in range(4)]
    for process in processes:
        process.start()
    winners = [won.get(timeout=60) for _ in range(200)]
    for process in processes:
        process.join()
    assert won.empty() and sorted(winners) == sorted(f"k{number}" for number in range(200))
