"""Learning rate and EMA momentum over a run, against the formulas of the papers and the official code."""

import math
from pathlib import Path

import pytest

from covid_cmsf.training.loop import lr_and_momentum
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.schedules import ema_momentum, learning_rate
from covid_cmsf.training.train_state import TrainState
from tests.training.factories import make_config


def test_the_cosine_per_epoch_is_that_of_the_official_code() -> None:
    epochs, lr = 200, 0.05
    for epoch in range(1, epochs + 1):  # 1-based: cmsf.md 3
        official = lr * 0.5 * (1 + math.cos(math.pi * (epoch - 1) / epochs))
        for fraction in (0.0, 0.4, 0.99):
            assert learning_rate(lr, epoch - 1 + fraction, epochs=epochs, name="cosine") == pytest.approx(official)
    assert learning_rate(lr, epochs - 1, epochs=epochs, name="cosine") == pytest.approx(3.1e-6, rel=0.01)


def test_the_cosine_per_step_falls_with_every_step() -> None:
    values = [learning_rate(1.0, step / 7, epochs=3, name="cosine", interval="step") for step in range(22)]
    assert values == pytest.approx([0.5 * (1 + math.cos(math.pi * step / 21)) for step in range(22)])
    assert values == sorted(values, reverse=True) and values[0] == 1 and values[-1] == 0


def test_steps_come_at_the_milestones() -> None:
    def lr(progress: float) -> float:
        return learning_rate(1.0, progress, epochs=300, name="step", milestones=(250, 280), gamma=0.1)

    assert [lr(epoch) for epoch in (0, 249.99, 250, 279.9, 280, 299)] == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("name", ["step", "cosine", "constant"])
def test_warm_up_rises_linearly_from_0(name: str) -> None:
    values = [learning_rate(2.0, e, epochs=9, name=name, warmup_epochs=4, milestones=(8,)) for e in (0, 1, 2, 3)]  # type: ignore[arg-type]
    assert values == pytest.approx([0, 0.5, 1, 1.5])
    after = learning_rate(2.0, 4, epochs=9, name=name, warmup_epochs=4, milestones=(8,))  # type: ignore[arg-type]
    assert after == learning_rate(2.0, 4, epochs=9, name=name, milestones=(8,))  # type: ignore[arg-type]


def test_the_ema_momentum_is_constant_or_rises_to_1() -> None:
    assert ema_momentum(0.99, 57.0, epochs=100, schedule="constant") == 0.99
    for step in range(101):
        byol = 1 - (1 - 0.99) * (math.cos(math.pi * step / 100) + 1) / 2
        assert ema_momentum(0.99, step / 10, epochs=10, schedule="cosine") == pytest.approx(byol)


def test_rates_of_a_run_follow_its_progress(clips: Path) -> None:
    chosen = make_config(
        clips,
        method={"name": "msf", "bank_size": 16, "ema_momentum": 0.9, "ema_schedule": "cosine"},
        schedule={"epochs": 4, "name": "cosine", "interval": "step"},
        optimizer={"lr": 1.0},
    )
    lr, momentum = lr_and_momentum(chosen, TrainState(epoch=1, batch=5), 10)
    assert lr == pytest.approx(0.5 * (1 + math.cos(math.pi * 1.5 / 4)))
    assert momentum == pytest.approx(1 - 0.1 * 0.5 * (1 + math.cos(math.pi * 1.5 / 4)))
    assert lr_and_momentum(make_config(clips, method={"name": "xent"}), TrainState(), 10) == (1e-3, 0.0)


def test_metrics_tell_the_rate_that_the_step_had(clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, schedule={"epochs": 2, "name": "step", "milestones": [1]}, optimizer={"lr": 0.01})
    run_training(chosen, tmp_path / "run")
    assert [line["lr"] for line in read_metrics(tmp_path / "run" / "metrics.jsonl")] == [0.01] * 5 + [0.001] * 5
