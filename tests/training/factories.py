"""Small training runs, and everything that two runs must have in common to be the same run."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from covid_cmsf.config import validate
from covid_cmsf.models import registry
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.training import loop
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training

TIMES = ("samples_per_s", "data_fraction", "seconds")
BASE: dict[str, Any] = {
    "encoder": "toy",
    "method": {"name": "infonce", "bank_size": 16},
    "views": {"length": 8, "stride": 1, "size": 32, "frame_size": 32},
    "batch_size": 4,
    "schedule": {"epochs": 2},
    "logging": {"interval": 1},
    "runtime": {"device": "cpu", "workers": 0, "threads": 1},
}
STEPS_PER_EPOCH = 5  # 21 videos in batches of 4


def make_config(clips: Path, **changes: Any) -> TrainConfig:
    """A run of ten steps; sections are merged, except `method`, which is replaced."""
    values = {**BASE, "clips": str(clips)}
    for key, value in changes.items():
        merge = isinstance(value, dict) and key != "method"
        values[key] = {**values.get(key, {}), **value} if merge else value
    return validate(TrainConfig, values, origin="a test")


def stop_at(monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """A real SIGTERM arrives in each of these steps."""
    real = loop.log_metrics

    def log_metrics(run: loop.Run, outcome: Any) -> None:
        real(run, outcome)
        if run.train_state.step in steps:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(loop, "log_metrics", log_metrics)


def finish(chosen: TrainConfig, folder: Path, *, most: int = 20) -> int:
    """Continues a run until it is finished; says how often it was stopped."""
    for stops in range(most):
        if run_training(chosen, folder) == "finished":
            return stops
    raise AssertionError(f"stopped more than {most} times")


def result(folder: Path) -> dict[str, Any]:
    """Every value of the last checkpoint and every number of the metrics, except times, by its place."""
    found: dict[str, Any] = {}
    values = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    del values["progress"]["seconds"], values["config"]["runtime"]
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
    checkpoint = torch.load(folder / "checkpoints" / "last.pt", weights_only=True)
    tensors: dict[str, torch.Tensor] = checkpoint["state"]
    return tensors


def _flatten(value: Any, place: str, found: dict[str, Any]) -> None:
    if isinstance(value, dict | list | tuple):
        pairs = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in pairs:
            _flatten(inner, f"{place}{key}.", found)
    elif isinstance(value, torch.Tensor):
        found[place] = (value.dtype, tuple(value.shape), value.contiguous().numpy().tobytes())
    else:
        found[place] = value


# An encoder so small that the engine around it takes the time: for tests that run many steps.

TOY = "toy"


class Toy(Encoder):
    """Four convolutions with batch norm; 32 features."""

    first_conv = "trunk.0.weight"
    min_input_size = (2, 8, 8)
    memory_format = torch.channels_last_3d

    def __init__(self, name: str, *, in_channels: int, bn_eps: float) -> None:
        layers: list[nn.Module] = []
        for size, next_size in ((in_channels, 16), (16, 32), (32, 32), (32, 32)):
            layers += [nn.Conv3d(size, next_size, 3, stride=2, padding=1, bias=False)]
            layers += [nn.BatchNorm3d(next_size, eps=bn_eps), nn.ReLU(inplace=True)]
        super().__init__(nn.Sequential(*layers), name=name, in_channels=in_channels, num_features=32)

    def forward_features(self, clip: Tensor) -> Tensor:
        return self.run_trunk(self.check_clip(clip).contiguous(memory_format=self.memory_format))


def add_toy() -> None:
    """Puts it into the zoo of this process, once."""
    if TOY not in registry.list_models():
        registry.register_encoder(TOY, default_input_size=(8, 32, 32), summary="for tests")(Toy)


def remove_toy() -> None:
    del registry._REGISTRY[TOY]
