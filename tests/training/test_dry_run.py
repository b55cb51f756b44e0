"""--dry-run builds everything, runs two steps, prints the plan and leaves nothing behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.training.dry_run import dry_run
from tests.training.command import write_config_file
from tests.training.factories import make_config


def listing(folder: Path) -> dict[str, int]:
    return {str(path): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_it_prints_the_plan_and_leaves_nothing_behind(
    clips: Path, flow_weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    guides = [{"weights": str(flow_weights), "modality": "flow", "cache": "views", "center": True}]
    chosen = make_config(clips, method={"name": "cmsf", "bank_size": 16}, guides=guides)
    config = write_config_file(chosen, tmp_path / "run.yaml")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    before = listing(tmp_path) | listing(clips) | listing(flow_weights.parent)
    shown = CliRunner().invoke(app, ["train", str(config), "--dry-run", "schedule.epochs=7"])
    assert shown.exit_code == 0, shown.output
    assert listing(tmp_path) | listing(clips) | listing(flow_weights.parent) == before
    for message in (
        "cmsf on rgb, 7 epochs",
        "21",
        "35 (7 epochs of 5)",
        "peak memory",
        "about",
        "guide_flow",
        "16 entries",
    ):
        assert message in shown.output, message
    assert [path.name for path in tmp_path.iterdir()] == ["run.yaml"]


CASES: list[dict[str, Any]] = [
    {},
    {"method": {"name": "coclr", "bank_size": 16}},  # its first step comes when the bank is full
    {"method": {"name": "xent"}},
    {"optimizer": {"accumulate": 5}},
    {"batch_size": 21, "method": {"name": "byol_asym", "bank_size": 21}},  # an epoch of a single step
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_two_steps_have_a_loss_whatever_the_method(changes: dict[str, Any], clips: Path, flow_weights: Path) -> None:
    if changes.get("method", {}).get("name") == "coclr":
        changes = {**changes, "guides": [{"weights": str(flow_weights), "modality": "flow"}]}
    entries = dry_run(make_config(clips, **changes)).entries
    assert "none" not in entries["losses of two steps"] and "GB" in entries["peak memory"]


def test_its_numbers_are_those_of_the_network(clips: Path) -> None:
    entries = dry_run(
        make_config(clips, method={"name": "msf", "bank_size": 10, "head": {"embedding_size": 8}})
    ).entries
    projector = 32 * 64 + 64 + 2 * 64 + 64 * 8 + 8
    assert f"projector {projector:,}" in entries["parameters"] and "predictor" in entries["parameters"]
    size = 10 * (8 * 4 + 5 * 8) + 8
    assert entries["bank"] == f"10 entries of target; {size / 1e6:.1f} MB"
    assert torch.get_num_threads() == 1
