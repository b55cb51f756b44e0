"""Samples per second and the fraction of time spent on data are those of the clock on the wall."""

from pathlib import Path
from typing import Any

import pytest

from covid_cmsf.training import loop
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.loop import ThroughputTimer
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.step import update as step_update
from tests.training.factories import make_config


class Clock:
    """A clock that only moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_time_is_counted_wherever_it_passes_but_for_pauses() -> None:
    clock = Clock()
    timer = ThroughputTimer(clock)

    def batches() -> Any:
        for _ in range(2):
            clock.now += 1  # waiting for data
            yield "batch"

    for _ in timer.timed(batches()):
        clock.now += 3
        timer.count(10)
        with timer.paused():
            clock.now += 1000
    assert timer.read() == {"samples_per_s": 20 / 8, "data_fraction": 2 / 8}
    clock.now += 4
    timer.count(2)
    assert timer.read() == {"samples_per_s": 0.5, "data_fraction": 0}


def test_the_time_of_a_backward_pass_on_a_gpu_is_counted(
    clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GPU's backward pass is waited for in the first synchronization after it, outside of the step's own code."""
    clock, real_sum, real_update = Clock(), DistributedContext.all_reduce_sum, step_update
    queued = []

    def update(*arguments: Any, **options: Any) -> Any:
        queued.append(2.0)  # forward and backward are queued, and Python goes on
        return real_update(*arguments, **options)

    def all_reduce_sum(self: DistributedContext, *values: Any) -> list[float]:
        while queued:
            clock.now += queued.pop()
        return real_sum(self, *values)

    monkeypatch.setattr(loop, "update", update)
    monkeypatch.setattr(DistributedContext, "all_reduce_sum", all_reduce_sum)
    monkeypatch.setattr(loop, "ThroughputTimer", lambda **options: ThroughputTimer(clock, **options))
    run_training(make_config(clips, schedule={"epochs": 1}, logging={"interval": 5}), tmp_path)
    (line,) = read_metrics(tmp_path / "metrics.jsonl")
    assert line["samples_per_s"] == pytest.approx(5 * 4 / 8)  # the line is written before the fifth is waited for
    assert line["data_fraction"] == 0
