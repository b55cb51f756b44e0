"""The walk of the architecture page names every file that a training step of CMSF runs through."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from covid_cmsf.training.build import build_components
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.loop import make_step_config
from covid_cmsf.training.step import forward_backward, update
from tests.training.factories import make_config

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
ENCODER_FILES = {"covid_cmsf/models/encoder.py", "covid_cmsf/models/heads.py"}  # layers, which the walk leaves out


def test_a_step_stays_in_the_files_of_the_walk(clips: Path, flow_weights: Path) -> None:
    section = PAGE.read_text().split("## A walk: one training step of CMSF")[1].split("\n## ")[0]
    listed = re.findall(r"^\| \d+ \| `([\w/.]+)`", section, re.MULTILINE)
    assert 5 < len(listed) <= 12
    config = make_config(
        precision="fp32",
        clips=clips,
        method={"name": "cmsf", "num_candidates": 5, "k": 2, "bank_size": 16},
        guides=[{"weights": str(flow_weights), "modality": "flow"}],
    )
    alone = DistributedContext(0, 1, torch.device("cpu"))
    components = build_components(config, alone)
    batch = next(make_loader(components.data, config, alone).epoch(0))
    step_config = make_step_config(config)
    used: set[str] = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "covid_cmsf"):
            used.add(path.relative_to(ROOT).as_posix())

    sys.setprofile(record)
    try:
        result = forward_backward(components, batch, step_config, alone)
        update(components, step_config, lr=0.1, momentum=0.9)
    finally:
        sys.setprofile(None)
    assert result.loss is not None and result.loss > 0
    assert used - ENCODER_FILES == set(listed)
