"""Gains of a plan: what is compared with what, paired by split and seed, in tables; older folders; incomplete seeds."""

import io
import json
import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.cli.compare import find_runs
from covid_cmsf.cotrain.gains import describe_gain, gain_notes, gain_pairs, gains_table, read_gains
from covid_cmsf.cotrain.graph import repetition_name
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.cotrain.rounds import expand_stages
from covid_cmsf.cotrain.run import build_graphs, write_results
from covid_cmsf.evaluation.features.file import load_features
from covid_cmsf.evaluation.paired import paired_difference
from covid_cmsf.evaluation.probes.linear import measure_linear
from covid_cmsf.evaluation.retrieval import measure_retrieval
from tests.report.plan_factories import make_clips, make_plan, plan_config

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_clips(tmp_path_factory.mktemp("gains") / "clips")


@pytest.fixture(scope="module")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two seeds of a round with the control MSF. Read only."""
    return make_plan(tmp_path_factory.mktemp("plan") / "out", store, seeds=[0, 1])


def rewrite(plan: PlanConfig, out: Path) -> list[dict[str, Any]]:
    write_results(plan, build_graphs(plan, out, plan_dir=out), out)
    return read_gains(out)


def names(**changes: Any) -> list[tuple[str, str]]:
    plan = plan_config(Path("clips"), **changes)
    return [(one.stage, one.over) for one in gain_pairs([(spec, spec.modality or "") for spec in expand_stages(plan)])]


def test_a_stage_is_compared_with_its_start_and_a_round_with_controls_of_its_modality() -> None:
    found = names(controls=["continued", "msf"], baselines=["chance", "random", "color"])
    for modality in ("rgb", "flow"):
        start, own = f"infonce-{modality}", f"cmsf-{modality}-1"
        assert {over for stage, over in found if stage == own} == {start, f"continued-{modality}", f"msf-{modality}"}
        assert [over for stage, over in found if stage == f"msf-{modality}"] == [start]
    assert not any(stage.startswith(("infonce", "random", "color")) for stage, _ in found)
    later = names(rounds=2, init="latest")
    assert {over for stage, over in later if stage == "cmsf-rgb-2"} == {"cmsf-rgb-1", "msf-rgb"}


def test_controls_of_another_start_are_no_controls() -> None:
    method, guided = {"name": "msf"}, {"name": "cmsf"}
    stages: list[dict[str, Any]] = [
        {"name": "short", "modality": "rgb"},
        {"name": "long", "modality": "rgb"},
        {"name": "msf", "modality": "rgb", "init": "short", "method": method},
        {"name": "cmsf", "modality": "rgb", "init": "long", "guide": "short", "method": guided},
    ]
    specs = PlanConfig.model_validate({"stages": stages}).stages
    found = gain_pairs([(spec, "rgb") for spec in specs])
    assert [(one.stage, one.over) for one in found] == [("msf", "short"), ("cmsf", "long")]


def test_stages_to_compare_with_are_added(tmp_path: Path) -> None:
    stages: list[dict[str, Any]] = [
        {"name": "random", "modality": "rgb", "random": "toy"},
        {"name": "start", "modality": "rgb", "method": {"name": "infonce"}, "compare": "random"},
        {"name": "a", "modality": "rgb", "init": "start", "guide": "random", "compare": ["start", "random"]},
        {"name": "b", "modality": "rgb", "init": "start", "guide": "random", "compare": "a"},
    ]
    plan = PlanConfig.model_validate({"stages": stages})
    found = [(one.stage, one.over, one.is_start) for one in gain_pairs([(spec, "rgb") for spec in plan.stages])]
    assert found == [
        ("start", "random", False),
        ("a", "start", True),
        ("a", "random", False),
        ("b", "start", True),
        ("b", "a", False),
    ]
    assert not any(one.is_control for one in gain_pairs([(spec, "rgb") for spec in plan.stages]))
    wrong = PlanConfig.model_validate({"stages": [{**stages[1], "compare": "later"}, *stages[2:]]})
    with pytest.raises(ValueError, match="stage 'start' is compared with 'later', which is not an earlier stage"):
        build_graphs(wrong, tmp_path, plan_dir=tmp_path)


def test_students_of_a_named_network_are_compared_with_it_and_with_the_round() -> None:
    found = names(guides=["timm:resnet18?weights=r.pth"])
    assert {over for stage, over in found if stage == "cmsf-rgb-resnet18"} == {
        "infonce-rgb",
        "resnet18",
        "cmsf-rgb-1",
    } | {over for stage, over in found if stage == "cmsf-rgb-1"}
    alone = names(guides=["timm:resnet18?weights=r.pth"], rounds=0, controls=[])
    assert [over for stage, over in alone if stage == "cmsf-flow-resnet18"] == ["infonce-flow", "resnet18"]
    folder = names(guides=["transformers:models/videomae-base?stride=2"], rounds=0, controls=[])
    assert ("cmsf-rgb-videomae-base", "videomae-base") in folder


def test_gains_are_the_paired_differences_over_seeds(finished: Path) -> None:
    rows = read_gains(finished)
    assert [(row["stage"], row["over"]) for row in rows] == names()
    row = next(row for row in rows if (row["stage"], row["over"]) == ("cmsf-rgb-1", "msf-rgb"))
    files = [
        [load_features(finished / repetition_name(seed, None) / name / "features.safetensors") for seed in (0, 1)]
        for name in ("msf-rgb", "cmsf-rgb-1")
    ]
    sources = measure_linear(files[0][0])[1].videos.sources
    hits = [[(measure_retrieval(one)[1][1].hits, measure_linear(one)[1].hits) for one in own] for own in files]
    for place, name in enumerate(("r1", "linear")):
        first, second = (np.stack([one[place].numpy() for one in own]) for own in hits)
        expected = paired_difference(first, second, sources)
        assert row[name]["difference"] == pytest.approx(expected.difference)
        assert (row[name]["low"], row[name]["high"]) == pytest.approx(expected.interval)
    assert (row["num_seeds"], row["num_splits"], row["num_query"]) == (2, 1, len(sources))


def test_the_verdict_says_where_the_interval_excludes_zero() -> None:
    up, none, down = {"low": 0.1, "high": 4.0}, {"low": 0.0, "high": 4.0}, {"low": -4.0, "high": -0.1}
    assert describe_gain({"r1": up, "linear": up}) == "better in both"
    assert describe_gain({"r1": none, "linear": up}) == "better in linear"
    assert describe_gain({"r1": up, "linear": down}) == "better in R@1, worse in linear"
    assert describe_gain({"r1": none, "linear": none}) == "no difference shown"


def test_the_table_fits_into_100_columns_and_says_what_remains_after_correction(finished: Path) -> None:
    rows = read_gains(finished)
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(gains_table(rows, width=100))
    text = console.export_text()
    lines = [line for line in text.splitlines() if line.strip()]
    assert len(lines) == len(rows) + 3  # title, headers, a line: nothing is broken in two
    assert "infonce-flow (start)" in text and "no difference shown" in text and max(map(len, text.splitlines())) <= 100
    assert "Seeds" not in text
    notes = gain_notes(rows)
    assert "over 2 seeds; 95% intervals resample sources and seeds" in notes[0]
    assert f"after correction for {len(rows)} comparisons (Holm)" in notes[1]
    assert "| cmsf-rgb-1 | msf-rgb | " in (finished / "table.md").read_text()


def test_an_older_folder_gets_its_answers_from_its_features(
    finished: Path, store: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    plan = plan_config(store, seeds=[0, 1])
    before = read_gains(out)
    kept = {path: path.read_bytes() for path in out.rglob("answers.safetensors")}
    assert len(kept) == 12
    for number, path in enumerate(kept):
        path.write_bytes(b"damaged") if number == 0 else path.unlink()
    assert rewrite(plan, out) == before
    assert {path: path.read_bytes() for path in kept} == kept
    lost = out / "seed-0" / "msf-rgb"
    for name in ("answers.safetensors", "features.safetensors"):
        (lost / name).unlink()
    with caplog.at_level(logging.WARNING):
        rows = rewrite(plan, out)
    assert f"delete {lost / 'stage.json'} and run the plan again" in caplog.text
    seeds = {(row["stage"], row["over"]): row["num_seeds"] for row in rows}
    assert seeds["cmsf-rgb-1", "msf-rgb"] == 1 and seeds["cmsf-rgb-1", "infonce-rgb"] == 2
    assert "| Seeds |" in (out / "table.md").read_text()


def test_answers_of_another_result_do_not_count(finished: Path, store: Path, tmp_path: Path) -> None:
    out = Path(shutil.copytree(finished, tmp_path / "out"))
    before = read_gains(out)
    shutil.copy(out / "seed-0/infonce-rgb/answers.safetensors", out / "seed-0/cmsf-rgb-1/answers.safetensors")
    assert rewrite(plan_config(store, seeds=[0, 1]), out) == before


def test_stages_of_plans_can_be_compared_by_command(finished: Path) -> None:
    arguments = ["evaluate", "compare", f"{finished}:msf-rgb", f"cmsf={finished}:cmsf-rgb-1", "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)["comparisons"]
    assert [one["metric"] for one in found] == ["R@1", "R@5", "R@10", "kNN 20", "linear"]
    row = next(row for row in read_gains(finished) if (row["stage"], row["over"]) == ("cmsf-rgb-1", "msf-rgb"))
    for number, name in ((0, "r1"), (4, "linear")):
        assert found[number]["difference"]["num_seeds"] == 2 and found[number]["second"] == "cmsf"
        assert found[number]["difference"]["interval"] == pytest.approx([row[name]["low"], row[name]["high"]])
    for argument, message in ((f"{finished}:cmsf", "has no stage 'cmsf'; choose from"), (f"{finished}", "name one of")):
        with pytest.raises(ValueError, match=message):
            find_runs([argument, f"{finished}:msf-rgb"])
