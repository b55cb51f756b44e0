"""A plan small enough to be run for real, on the training tests' clip store."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.training.conftest import clips, frame_weights  # noqa: F401 (fixtures)

DEFAULTS: dict[str, Any] = {
    "encoder": "s3d_tiny",
    "views": {"length": 8, "stride": 1, "size": 32, "frame_size": 32},
    "batch_size": 4,
    "logging": {"interval": 1},
    "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False},
}
PRETRAIN: dict[str, Any] = {"method": {"name": "infonce", "bank_size": 16}, "schedule": {"epochs": 1}}
CMSF: dict[str, Any] = {
    "method": {"name": "cmsf", "num_candidates": 4, "k": 2, "bank_size": 16},
    "schedule": {"epochs": 1},
}


@pytest.fixture
def plan(clips: Path, tmp_path: Path) -> Path:  # noqa: F811
    """One round, RGB first: five stages with a control."""
    values = {
        "defaults": {"clips": str(clips), **DEFAULTS},
        "rounds": 1,
        "first": "rgb",
        "pretrain": PRETRAIN,
        "cmsf": CMSF,
        "evaluation": {"windows": 1},
    }
    path = tmp_path / "plan.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    return path
