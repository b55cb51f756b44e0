"""Small training runs, and everything that two runs must have in common to be the same run."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from covid_cmsf.config import validate
from covid_cmsf.training import loop
from covid_cmsf.training.metrics import read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.settings import TrainSettings

TIMES = ("examples_per_s", "data_share", "seconds")
BASE: dict[str, Any] = {
    "encoder": "toy",
    "method": {"name": "infonce", "bank_rows": 16},
    "views": {"length": 8, "stride": 1, "size": 32, "frame_size": 32},
    "batch_size": 4,
    "schedule": {"epochs": 2},
    "watch": {"every": 1},
    "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False},
}
STEPS_PER_EPOCH = 5  # 21 videos in batches of 4


def settings(clips: Path, **changes: Any) -> TrainSettings:
    """A run of ten steps; sections are merged, except `method`, which is replaced."""
    values = {**BASE, "clips": str(clips)}
    for key, value in changes.items():
        merge = isinstance(value, dict) and key != "method"
        values[key] = {**values.get(key, {}), **value} if merge else value
    return validate(TrainSettings, values, place="a test")


def stop_at(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """A real SIGTERM arrives in each of these steps."""
    real = loop.measure

    def measure(run: loop.Run, outcome: Any) -> None:
        real(run, outcome)
        if run.progress.step in steps:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "measure", measure)


def finish(chosen: TrainSettings, folder: Path, *, most: int = 20) -> int:
    """Continues a run until it is finished; says how often it was stopped."""
    for stops in range(most):
        if run_training(chosen, folder) == "finished":
            return stops
    raise AssertionError(f"stopped more than {most} times")


def result(folder: Path) -> dict[str, Any]:
    """Every value of the last checkpoint and every number of the metrics, except times, by its place."""
    found: dict[str, Any] = {}
    values = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    del values["progress"]["seconds"], values["settings"]["runtime"]
    _flatten(values, "", found)
    lines = read_metrics(folder / "metrics.jsonl")
    _flatten([{key: value for key, value in line.items() if key not in TIMES} for line in lines], "metrics.", found)
    return found


def differing(first: Path, second: Path) -> list[str]:
    """Places at which two runs differ in a single bit."""
    one, other = result(first), result(second)
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))


def losses(folder: Path) -> list[float]:
    return [line["loss"] for line in read_metrics(folder / "metrics.jsonl")]


def state(folder: Path) -> dict[str, torch.Tensor]:
    """The tensors of the last checkpoint."""
    return torch.load(folder / "checkpoints" / "last.pt", weights_only=True)["state"]


def _flatten(value: Any, place: str, found: dict[str, Any]) -> None:
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            _flatten(inner, f"{place}{key}.", found)
    elif isinstance(value, torch.Tensor):
        found[place] = (value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes())
    else:
        found[place] = value
