"""Results pages get their figures from a plan's files: nothing is typed, nothing is lost in rounding."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tools.plan_results import fill, main
from tools.results import Experiment, Seeded

WORDS = {
    "id": "some-plan",
    "title": "Some plan",
    "question": "Does it help?",
    "date": "2026-11-19",
    "commit": "1234567",
    "machine": "2 cores",
    "seeds": [0, 1],
    "commands": ["covid-cmsf cotrain some/plan"],
    "setup": ["Some clips."],
    "reading": ["It does."],
    "caveats": ["Few clips."],
}


def row(stage: str, r1: list[float], linear: list[float], **more: object) -> dict[str, Any]:
    values: dict[str, Any] = {"stage": stage, "done": True, "num_splits": 1}
    for name, seeds in (("r1", r1), ("linear", linear)):
        values |= {name: statistics.mean(seeds), f"{name}_sd": statistics.stdev(seeds), f"{name}_seeds": seeds}
    return {**values, **more}


def gain(stage: str, over: str, low: float, high: float, *, is_start: bool = False) -> dict[str, Any]:
    value = {"difference": (low + high) / 2, "low": low, "high": high, "first": 60.0, "second": 60 + (low + high) / 2}
    return {"stage": stage, "over": over, "is_start": is_start, "r1": value, "linear": value}


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    rows = [
        row("infonce-rgb", [60.0, 61.04], [70.0, 71.0]),
        row("msf-rgb", [63.0, 64.0], [72.0, 72.5]),
        row("cmsf-rgb-1", [66.66, 68.0], [74.0, 75.0]),
        row("coclr-rgb", [1.0, 2.0], [3.0, 4.0], done=False),
    ]
    gains = [
        gain("msf-rgb", "infonce-rgb", 1.0, 5.0, is_start=True),
        gain("cmsf-rgb-1", "infonce-rgb", 2.0, 9.0, is_start=True),
        gain("cmsf-rgb-1", "msf-rgb", -1.04, 7.0),
        gain("cmsf-rgb-1", "coclr-rgb", -7.0, -1.0),
    ]
    (tmp_path / "table.json").write_text(json.dumps(rows))
    (tmp_path / "gains.json").write_text(json.dumps(gains))
    return tmp_path


def test_figures_are_those_of_the_plan(plan: Path) -> None:
    filled = fill(dict(WORDS), plan, names={"cmsf-rgb-1": "CMSF on RGB"}, stages=["cmsf-rgb-1"])
    page = Experiment.model_validate(filled)
    figures, gains = page.tables
    assert [cells[0] for cells in figures.rows] == ["infonce-rgb", "msf-rgb", "CMSF on RGB"]  # coclr-rgb is not done
    assert figures.rows[0][1] == Seeded(mean=60.5, sd=0.7, values=[60.0, 61.0])
    assert gains.rows[2] == ["CMSF on RGB", "msf-rgb", "+3.0 [-1.0, +7.0]", "+3.0 [-1.0, +7.0]"]
    assert gains.rows[1][1] == "infonce-rgb (start)"


def test_a_claim_or_its_opposite_is_shown_if_the_interval_excludes_zero(plan: Path) -> None:
    filled = fill({**WORDS, "where": "clips"}, plan, names={}, stages=["cmsf-rgb-1"])
    claims = {claim["claim"]: (claim["verdict"], claim["spread"]) for claim in filled["claims"]}
    assert claims == {
        f"cmsf-rgb-1 is above {over} ({metric}, clips)": (verdict, f"95% interval {spread}")
        for metric in ("R@1", "linear")
        for over, verdict, spread in (
            ("infonce-rgb (start)", "shown", "[+2.0, +9.0], excludes zero"),
            ("msf-rgb", "not shown", "[-1.0, +7.0], includes zero"),
            ("coclr-rgb", "opposite shown", "[-7.0, -1.0], excludes zero, below zero"),
        )
    }
    assert all(claim["seeds"] == [0, 1] and claim["command"] == WORDS["commands"][0] for claim in filled["claims"])


def test_over_several_splits_there_are_no_values_per_seed(plan: Path) -> None:
    rows = [row("cmsf-rgb-1", [60.0, 62.0, 70.0, 72.0], [1.0, 2.0, 3.0, 4.0], num_splits=2)]
    (plan / "table.json").write_text(json.dumps(rows))
    (plan / "gains.json").unlink()
    with pytest.raises(ValueError, match="claims"):  # a page needs claims, and there are none without gains
        fill(dict(WORDS), plan, names={}, stages=["cmsf-rgb-1"])
    (plan / "gains.json").write_text(json.dumps([gain("cmsf-rgb-1", "msf-rgb", 1.0, 2.0)]))
    (figures, _) = Experiment.model_validate(fill(dict(WORDS), plan, names={}, stages=["cmsf-rgb-1"])).tables
    assert isinstance(figures.rows[0][1], Seeded) and figures.rows[0][1].values == []
    assert "in 2 splits" in figures.title


def test_an_unknown_stage_is_refused(plan: Path) -> None:
    with pytest.raises(ValueError, match=r"no stage 'cmsf-rgb'; it has cmsf-rgb-1, coclr-rgb"):
        fill(dict(WORDS), plan, names={}, stages=["cmsf-rgb"])


def test_the_command_replaces_the_figures_of_the_file(plan: Path, tmp_path: Path) -> None:
    data = tmp_path / "some-plan.json"
    data.write_text(json.dumps({**WORDS, "tables": ["old"], "claims": []}))
    app = typer.Typer()
    app.command()(main)
    arguments = [str(plan), str(data), "--claims", "cmsf-rgb-1", "--name", "msf-rgb=MSF", "--where", "real clips"]
    for _ in range(2):  # the second time it replaces its own
        ended = CliRunner().invoke(app, arguments)
        assert ended.exit_code == 0, ended.output
    page = Experiment.model_validate_json(data.read_text())
    assert "cmsf-rgb-1 is above MSF (R@1, real clips)" in [claim.claim for claim in page.claims]
    assert len(page.tables) == 2


def test_costs_of_extraction_are_a_table(plan: Path, tmp_path: Path) -> None:
    measured: dict[str, float] = {"clips": 2, "frames": 12, "short_edge": 60}
    measured |= {"dis_cpu_ms_a_frame": 0.43219, "dis_compute_cpu_ms_a_frame": 0.2, "dis_bytes_a_frame": 190.0}
    costs = tmp_path / "costs.json"
    costs.write_text(json.dumps({"results": measured}))
    filled = fill(dict(WORDS), plan, names={"dis": "DIS"}, stages=["cmsf-rgb-1"], costs=costs)
    table = Experiment.model_validate(filled).tables[2]
    assert table.rows == [["DIS", 0.432, 0.2, 190.0]] and "2 clips, 12 frames" in table.title
    costs.write_text(json.dumps({"results": {"median_s": 1.0}}))
    with pytest.raises(ValueError, match="has no costs"):
        fill(dict(WORDS), plan, names={}, stages=["cmsf-rgb-1"], costs=costs)
