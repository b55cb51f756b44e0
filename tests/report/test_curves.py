"""Curves: thinned, averaged over seeds, drawn for papers."""

import json
import random
import statistics
from pathlib import Path

import matplotlib.image
import pytest

from covid_cmsf.report.comparison import compare, group_numbers, mean_and_std
from covid_cmsf.report.curves import (
    CHARTS,
    SMOOTHING,
    build_lines,
    charts_of,
    draw_curve_figures,
    line_styles,
    mean_curve,
    smooth,
    subsample,
    to_columns,
)
from covid_cmsf.report.line_styles import MODALITY_COLORS, Family, family_styles, lighten
from covid_cmsf.report.runs import read_run, read_runs
from tests.report.plan_factories import make_plan


@pytest.mark.parametrize("count", [0, 1, 99, 100, 101, 1234])
def test_long_curves_are_thinned_evenly_and_keep_their_end(count: int) -> None:
    lines = [{"step": step} for step in range(count)]
    kept = [line["step"] for line in subsample(lines, 100)]
    stride = next(n for n in range(1, 1000) if len(range(0, count, n)) <= 100)
    assert kept == sorted({*range(0, count, stride), *([count - 1] if count else [])})


def test_the_mean_over_seeds_is_that_of_each_common_step() -> None:
    draw = random.Random(0)
    curves = []
    for shift in range(3):
        lines = [{"step": 10 * i, "loss": draw.random()} for i in range(shift, 6)]
        lines[2]["purity"] = draw.random()
        curves.append(to_columns(lines))
    mean, spread = mean_curve(curves)
    assert mean["step"] == [20, 30, 40, 50]
    for place, step in enumerate(mean["step"]):
        values = [curve["loss"][curve["step"].index(step)] for curve in curves]
        assert mean["loss"][place] == pytest.approx(statistics.mean(values))
        assert spread["loss"][place] == pytest.approx(statistics.stdev(values))
    assert mean["purity"] == [None] * 4  # at no step do all have it


def test_seeds_are_one_family_with_a_mean(seeds: Path, plan: Path) -> None:
    lines = build_lines([read_run(seeds, "seeds")])
    mine = [line for line in lines if line.stage == "cmsf-rgb-1"]
    assert [line.seed for line in mine] == ["seed 0", "seed 1", "mean"] and len({line.family for line in mine}) == 1
    assert mine[2].curve["loss"][0] == pytest.approx((mine[0].curve["loss"][0] + mine[1].curve["loss"][0]) / 2)
    alone = build_lines([read_run(plan, "plan")])
    assert {line.seed for line in alone} == {""} and len({line.family for line in alone}) == len(alone) == 6


def test_a_smoothed_curve_is_a_centered_mean_that_keeps_its_ends_and_gaps() -> None:
    draw = random.Random(0)
    values = [None if i == 30 else draw.random() for i in range(5 * SMOOTHING)]
    found = smooth(values)
    for i, value in enumerate(found):
        reach = min(i, len(values) - 1 - i, 5)
        near = [one for one in values[i - reach : i + reach + 1] if one is not None]
        assert value == (None if i == 30 else pytest.approx(statistics.mean(near)))
    assert found[0] == values[0] and found[-1] == values[-1]
    short = [3.0, 1.0, 2.0]
    assert smooth(short) == short and smooth([]) == []
    assert smooth([float(i) for i in range(200)]) == pytest.approx(list(range(200)))  # a slope is not bent at its ends


def test_curves_have_the_colors_of_the_bars(plan: Path, seeds: Path) -> None:
    lines = build_lines([read_run(plan, "plan")])
    styles = {line.stage: line_styles(lines)[line.family] for line in lines}
    for modality in ("rgb", "flow"):
        assert styles[f"cmsf-{modality}-1"] == (MODALITY_COLORS[modality], "solid")
        others = [styles[f"infonce-{modality}"], styles[f"msf-{modality}"]]
        assert others == [(lighten(MODALITY_COLORS[modality]), "solid"), (lighten(MODALITY_COLORS[modality]), "dash")]
    both = build_lines(read_runs([plan, seeds]))  # several groups: the colors of the comparison
    colors = {line.group: line_styles(both)[line.family].color for line in both if line.modality == "rgb"}
    assert len({*colors.values()}) == 2


def test_two_families_are_never_drawn_alike_before_the_dashes_are_used_up() -> None:
    families = [
        Family(group, modality, "control") for group in (0, 1) for modality in ("rgb", "flow") for _ in range(4)
    ]
    assert len({*family_styles(families)}) == len(families)
    assert family_styles([]) == [] and family_styles([Family(0, "", "pretrain")])[0].color == "#888888"


def test_losses_that_cannot_be_compared_have_their_own_charts(plan: Path, tmp_path: Path) -> None:
    lines = build_lines([read_run(plan, "plan")])
    losses = [chart for chart in charts_of(lines) if chart.loss is not None]
    assert [chart.title for chart in losses] == ["Loss of InfoNCE", "Loss of mean shift"]
    stages = [{line.stage for line in lines if line.loss == chart.loss} for chart in losses]
    assert stages[0] == {"infonce-rgb", "infonce-flow"} and len(stages[1]) == 4  # MSF and CMSF: the same formula
    assert charts_of([line for line in lines if line.loss == "InfoNCE"]) == list(CHARTS)


@pytest.mark.slow
def test_figures_are_written_for_what_there_is(seeds: Path, tmp_path: Path) -> None:
    lines = build_lines([read_run(seeds, "se$eds")])
    written = draw_curve_figures(lines, tmp_path)
    drawn = {chart.name for chart in charts_of(lines)} - {"knn"}  # which no run asked for
    assert set(written) == drawn > {"loss-infonce", "loss-mean-shift"}
    for names in written.values():
        assert matplotlib.image.imread(tmp_path / names[0]).shape[0] > 300
        assert (tmp_path / names[1]).read_text().startswith("<?xml")
    assert draw_curve_figures([], tmp_path) == {}


def test_plans_that_differ_in_their_seed_alone_are_a_group(clips: Path, seeds: Path, tmp_path: Path) -> None:
    other = make_plan(tmp_path / "b", clips, controls=[], seeds=[2], done=["infonce-rgb"])
    longer = make_plan(tmp_path / "c", clips, controls=[], seeds=[0], rounds=2, done=["infonce-rgb"])
    plans = read_runs([seeds, other, longer])
    assert group_numbers(plans) == [0, 0, 1]
    found = compare(plans)
    assert [group["plans"] for group in found["groups"]] == [["seeds", "b"], ["c"]]
    assert found["groups"][0]["seeds"] == [0, 1, 2]
    rows = {stage["stage"]: stage["groups"] for stage in found["stages"]}
    folders = [seeds / "seed-0", seeds / "seed-1", other / "seed-2"]
    values = [json.loads((folder / "infonce-rgb" / "stage.json").read_text())["r1"] for folder in folders]
    cell = rows["infonce-rgb"]["0"]["r1"]
    assert cell == {"mean": statistics.mean(values), "sd": statistics.stdev(values), "values": values}
    assert found["stages"][0]["stage"] == "chance" and rows["chance"]["0"]["r1"]["mean"] == 25
    assert set(rows["cmsf-rgb-2"]) == {"1"} and rows["cmsf-rgb-2"]["1"]["r1"]["mean"] is None


def test_runs_of_the_same_settings_are_a_group(plan: Path, tmp_path: Path) -> None:
    text = (plan / "infonce-rgb" / "config.yaml").read_text()
    for name, seed, epochs in (("x", 0, 6), ("y", 1, 6), ("z", 1, 7)):
        (tmp_path / name).mkdir()
        own = text.replace("\nseed: 0", f"\nseed: {seed}").replace("epochs: 6", f"epochs: {epochs}")
        (tmp_path / name / "config.yaml").write_text(own)
    plans = read_runs([tmp_path / name for name in "xyz"])
    assert group_numbers(plans) == [0, 0, 1] and compare(plans)["groups"][0]["seeds"] == [0, 1]


def test_a_single_value_has_no_spread() -> None:
    assert mean_and_std([3.0]) == {"mean": 3.0, "sd": None, "values": [3.0]}
    assert mean_and_std([]) == {"mean": None, "sd": None, "values": []}
