"""The sentence above a report: verdict, interval and chance; what it compares with; what it says without results."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from covid_cmsf.cotrain.table import Row
from covid_cmsf.report.build import Report, ReportOptions
from covid_cmsf.report.headline import headline
from covid_cmsf.report.page_data import plan_values
from covid_cmsf.report.plan_summary import Gains, plan_rows, read_plan_gains
from covid_cmsf.report.provenance import resume_command
from covid_cmsf.report.runs import read_run
from tests.report.plan_factories import make_plan


def gain(stage: str, over: str, difference: float, half: float, *, is_start: bool = False) -> Row:
    interval = {"difference": difference, "low": difference - half, "high": difference + half}
    return {"stage": stage, "over": over, "is_start": is_start, "is_control": not is_start, "r1": interval}


def sentence(plan: Path, gains: list[Row], changes: dict[str, dict[str, Any]] | None = None) -> str:
    """The headline with made-up gains; `changes` are of the rows, by stage."""
    run = read_run(plan, "plan")
    rows = [row | (changes or {}).get(row["stage"], {}) for row in plan_rows(run)]
    return headline(run, rows, Gains(gains, []))


def test_the_verdict_is_over_the_strongest_control_with_its_interval_and_chance(plan: Path) -> None:
    values = {"cmsf-rgb-1": {"r1": 50.0}, "msf-rgb": {"r1": 40.0}, "infonce-rgb": {"r1": 60.0}}
    start = gain("cmsf-rgb-1", "infonce-rgb", -10, 3, is_start=True)
    found = sentence(plan, [start, gain("cmsf-rgb-1", "msf-rgb", 10, 3)], values)
    assert found == (
        "CMSF 4/2 on RGB is better than its strongest control, msf-rgb: R@1 50.0 (chance 25.0), +10.0 points (95% "
        "interval +7.0 to +13.0)."
    )
    assert "is worse than its start, infonce-rgb" in sentence(plan, [start], values)
    unsure = sentence(plan, [gain("cmsf-rgb-1", "msf-rgb", 10, 11)], values)
    assert "is not shown to be better than" in unsure and "-1.0 to +21.0" in unsure
    both = [gain("cmsf-rgb-1", "msf-rgb", 10, 3), gain("cmsf-rgb-1", "infonce-flow", 1, 3)]
    stronger = sentence(plan, both, values | {"infonce-flow": {"r1": 41.0}})
    assert "infonce-flow" in stronger and "msf-rgb" not in stronger


def test_a_stage_that_is_only_compared_is_no_control(plan: Path) -> None:
    values = {"cmsf-rgb-1": {"r1": 50.0}, "infonce-flow": {"r1": 70.0}}
    start = gain("cmsf-rgb-1", "infonce-rgb", 10, 3, is_start=True)
    compared = gain("cmsf-rgb-1", "infonce-flow", -20, 3) | {"is_control": False}
    assert "is better than its start, infonce-rgb" in sentence(plan, [start, compared], values)


def test_labels_as_the_constraint_are_no_control_to_beat(plan: Path) -> None:
    gains = [gain("cmsf-rgb-1", "msf-rgb", 10, 3), gain("cmsf-rgb-1", "infonce-rgb", -5, 1)]
    values = {"infonce-rgb": {"r1": 99.0, "constraint": "labels"}}
    assert "is better than its strongest control, msf-rgb" in sentence(plan, gains, values)


def test_the_sentence_of_a_whole_plan_has_a_verdict_per_modality(plan: Path) -> None:
    run = read_run(plan, "plan")
    found = headline(run, plan_rows(run), read_plan_gains(run))
    assert found.count("points (95% interval") == 2 and "CMSF 4/2 on RGB" in found and "CMSF 4/2 on flow" in found


def test_what_is_missing_is_said_with_the_command(clips: Path, plan: Path, tmp_path: Path) -> None:
    part = make_plan(tmp_path / "a b", clips, done=["infonce-rgb"])
    values = plan_values([read_run(part, "part")], [None])[0]
    assert values["headline"] == "No verdict yet: 1 of 6 stages are done, and none of the last rounds."
    assert values["progress"] == [1, 6]
    assert values["resume"] == shlex.join(["covid-cmsf", "cotrain", str(part / "plan.json"), "--out", str(part)])
    assert plan_values([read_run(plan, "plan")], [None])[0]["resume"] is None


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["/bin/covid-cmsf", "cotrain", "demo", "--out", "runs/demo"], "covid-cmsf cotrain demo --out runs/demo"),
        (["/bin/covid-cmsf", "cotrain", "demo", "--only", "msf-rgb"], None),  # would not go on with all of it
        (["/bin/covid-cmsf", "learn", "videos", "--out", "mine"], "covid-cmsf learn videos --out mine"),
        # What torchrun starts for a stage of several processes.
        (["/site/covid_cmsf/__main__.py", "train", "runs/demo/infonce-rgb", "--accept-changes"], None),
        (["pytest"], None),
    ],
)
def test_a_plan_goes_on_by_its_own_command(clips: Path, tmp_path: Path, argv: list[str], expected: str | None) -> None:
    part = make_plan(tmp_path / "part", clips, done=["infonce-rgb"])
    start = json.dumps({"time": "2026-01-01T00:00:00Z", "command": argv})
    (part / "infonce-rgb" / "environment.jsonl").write_text(start + "\n")
    usual = f"covid-cmsf cotrain {part / 'plan.json'} --out {part}"
    assert resume_command(read_run(part, "part")) == (expected or usual)


def test_networks_without_labels_or_without_a_plan_have_a_sentence_too(plan: Path) -> None:
    run = read_run(plan / "infonce-rgb", "run")
    rows = plan_rows(run)
    found = headline(run, rows, Gains([], []))
    assert found.startswith("InfoNCE on RGB has R@1 ") and "(chance 25.0), 95% interval " in found
    unlabeled = [row | {"r1": None, "window_r1": 43.0, "window_chance": 0.3} for row in rows]
    assert headline(run, unlabeled, Gains([], [])) == (
        "InfoNCE on RGB recognizes 43.0% of the videos by another moment of theirs (chance 0.3)."
    )
    assert headline(run, [row | {"r1": None} for row in rows], Gains([], [])) == "This run is not measured yet."


@pytest.mark.slow
def test_a_plan_without_labels_shows_what_it_has_and_no_empty_columns(
    plan: Path, tmp_path: Path, open_page: Any
) -> None:
    copy = tmp_path / "plan"
    shutil.copytree(plan, copy, ignore=shutil.ignore_patterns("features.safetensors", "answers*"))
    values = json.loads((copy / "plan.json").read_text()) | {"baselines": []}
    (copy / "plan.json").write_text(json.dumps(values))
    for stage in copy.glob("*/stage.json"):
        keys = ("r1", "r1_interval", "linear", "chance", "num_classes")
        kept = {name: value for name, value in json.loads(stage.read_text()).items() if name not in keys}
        stage.write_text(json.dumps({**kept, "window_r1": 43.25, "window_chance": 6.25, "num_videos": 16}))
        for name in ("retrieval.json", "linear.json"):
            (stage.parent / name).unlink()
    Report([copy], tmp_path / "report", ReportOptions(pictures=False)).write(figures=False)
    page = open_page(tmp_path / "report", viewport={"width": 400, "height": 800}).page
    page.wait_for_selector("#overview .results")
    assert "recognizes 43.2% of the videos by another moment of theirs (chance 6.2)" in (
        page.locator("#overview .headline").inner_text()
    )
    heads = page.locator("#overview .results th").all_text_contents()
    assert "Other window" in heads and "R@1" not in heads and "Linear" not in heads
    assert page.locator("#overview .results tr[data-stage=chance] .other-window").inner_text() == "6.3"
    assert set(page.locator("#overview .graph .result").all_text_contents()) == {"43.3"}
    facts = page.locator("#overview").inner_text()
    assert "95% intervals" not in facts and "Measured on 16 videos" in facts
