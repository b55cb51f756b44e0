"""Cross-validation: all stages per split and seed, means over splits, preflight and dry run of each split."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf import exit_codes
from covid_cmsf.cli.app import app
from covid_cmsf.cotrain.gains import read_gains
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.cotrain.run import build_graphs, load_plan, run_plan
from covid_cmsf.cotrain.table import mean_over_seeds
from covid_cmsf.evaluation.compare import MethodRun, compare_runs
from covid_cmsf.evaluation.features.file import load_features
from covid_cmsf.preflight import PreflightError

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


def keys(plan: Path, *overrides: str) -> dict[Path, str]:
    graphs = build_graphs(load_plan(plan, list(overrides)), Path("out"), plan_dir=plan.parent)
    return {stage.folder: stage.key for stages in graphs for stage in stages}


def test_every_stage_is_trained_and_measured_per_split_and_seed(plan: Path) -> None:
    out = plan.parent / "out"
    options = ["--splits", "1,2", "--seeds", "0,1", "--only", "infonce-rgb", "--out", str(out)]
    done = CliRunner().invoke(app, ["cotrain", str(plan), *options], env={"COLUMNS": "140"})
    assert done.exit_code == exit_codes.SUCCESS, done.output
    results = {}
    for split in ("1", "2"):
        for seed in (0, 1):
            folder = out / f"split-{split}" / f"seed-{seed}" / "infonce-rgb"
            config = yaml.safe_load((folder / "config.yaml").read_text())
            assert (config["split"], config["seed"]) == (split, seed)
            features = load_features(folder / "features.safetensors")
            assert features.provenance.split == split
            results[split, seed] = json.loads((folder / "stage.json").read_text())["r1"]
    row = json.loads((out / "table.json").read_text())[0]
    assert row["r1"] == pytest.approx(sum(results.values()) / 4) and (row["num_seeds"], row["num_splits"]) == (2, 2)
    own = json.loads((out / "split-2" / "table.json").read_text())[0]
    assert own["r1"] == pytest.approx((results["2", 0] + results["2", 1]) / 2)


def test_gains_are_paired_within_split_and_seed(plan: Path) -> None:
    values = yaml.safe_load(plan.read_text())
    stages: list[dict[str, Any]] = [
        {"name": "start", "modality": "rgb", "overrides": values["pretrain"]},
        {"name": "more", "modality": "rgb", "init": "start", "overrides": values["pretrain"]},
    ]
    kept = {name: values[name] for name in ("defaults", "evaluation")}
    plan.write_text(yaml.safe_dump({**kept, "stages": stages, "splits": [1, 2]}))
    code, rows = run_plan(load_plan(plan, []), plan.parent / "out", plan_dir=plan.parent)
    assert code == exit_codes.SUCCESS and rows[0]["r1_sd"] is None  # one seed
    (gain,) = read_gains(plan.parent / "out")
    runs = [
        MethodRun(name, load_features(plan.parent / "out" / f"split-{split}" / name / "features.safetensors"))
        for name in ("start", "more")
        for split in (1, 2)
    ]
    found = compare_runs(runs).comparisons
    for name, metric in (("r1", "R@1"), ("linear", "linear")):
        expected = next(one.difference for one in found if one.metric == metric)
        assert (gain[name]["low"], gain[name]["high"]) == pytest.approx(expected.interval)
    assert gain["num_splits"] == 2 and "2 splits" in (plan.parent / "out" / "table.md").read_text()


def test_a_plan_without_splits_keeps_folders_and_keys_and_splits_have_those_of_their_split(plan: Path) -> None:
    alone = keys(plan)
    assert set(alone) == {Path("out") / name for name in ("infonce-rgb", "infonce-flow", "cmsf-rgb-1", "cmsf-flow-1")}
    second = keys(plan, 'defaults.split="2"')
    assert keys(plan, "splits=[2]") == {Path("out/split-2") / path.name: key for path, key in second.items()}
    both = keys(plan, "splits=[2, 3]")
    assert {path: both[path] for path in both if "split-2" in path.parts} == keys(plan, "splits=[2]")
    assert len(set(both.values())) == 8  # adding a split leaves the stages of the first alone


def test_each_split_is_checked_before_the_first_stage(plan: Path) -> None:
    for splits, message in (("[1, 7]", "'7'"), ("[1, 3]", "'test'")):  # the test groups of split 3 are not there
        with pytest.raises(PreflightError, match=message):
            run_plan(load_plan(plan, [f"splits={splits}"]), plan.parent / "out", plan_dir=plan.parent)
    assert not (plan.parent / "out").exists()


def test_a_dry_run_counts_all_splits_and_seeds(plan: Path) -> None:
    arguments = ["cotrain", str(plan), "--dry-run", "--splits", "1,2", "--seeds", "0,1,2", "--only", "infonce-rgb"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    assert done.output.count("infonce-rgb: InfoNCE on rgb") == 6 and "split 2, seed 1" in done.output
    assert "2 splits and 3 seeds together: " in done.output


def test_splits_that_contradict_the_rest_are_refused(plan: Path) -> None:
    stages = {"stages": [{"name": "a", "modality": "rgb"}]}
    for values, message in (
        ({"splits": [2, "2"]}, "splits has one twice: 2, 2"),
        ({"splits": [2], "evaluation": {"split": 1}}, r"leave out evaluation\.split"),
    ):
        with pytest.raises(ValueError, match=message):
            PlanConfig.model_validate({**stages, **values})
    with pytest.raises(ValueError, match="stage cmsf-rgb-1 has a split of its own"):
        keys(plan, "splits=[1, 2]", "cmsf.split=3")


def test_means_count_every_split_the_same_and_spread_is_between_seeds() -> None:
    names = ("r1", "linear", "effective_rank", "window_r1", "source_r1", "agreement", "transfer", "seconds")
    extra = {"done": True, "error": None, "num_skipped": 0}
    one = [[[{**dict.fromkeys(names), **extra, "r1": value}] for value in split] for split in ([10.0, 14.0], [40.0])]
    (row,) = mean_over_seeds(one)
    assert row["r1"] == pytest.approx((12 + 40) / 2) and row["r1_sd"] == pytest.approx(8**0.5)
    assert (row["num_seeds"], row["num_splits"], row["r1_seeds"]) == (2, 2, [10.0, 14.0, 40.0])
