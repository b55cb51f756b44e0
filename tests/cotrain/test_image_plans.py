"""A plan on images: the same stages and table, plus transfer and published figures."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.cotrain.run import build_graphs, load_plan, write_results
from covid_cmsf.report.runs import read_run
from tests.factories import make_image_folder

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

DEFAULTS = {
    "modality": "frame",
    "encoder": "r10_small",
    "views": {"frame_size": 16},
    "batch_size": 8,
    "labels": {"noise": 0.25},
    "schedule": {"epochs": 1},
    "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False},
}


@pytest.mark.slow
def test_a_plan_on_images_ends_in_a_table_with_transfer_beside_it(tmp_path: Path) -> None:
    images = make_image_folder(tmp_path / "set")
    stages = [
        {"name": "random", "random": "r10_small", "modality": "frame"},
        {"name": "xent", "method": {"name": "xent"}, "published": {"linear": 67.8, "transfer": 47.8}},
        {"name": "top-2", "method": {"name": "cmsf", "constraint": "label", "k": 2, "bank_size": 16}},
    ]
    values = {"defaults": {"clips": str(images), **DEFAULTS}, "stages": stages, "evaluation": {"probe": "compress"}}
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    plan.write_text(yaml.safe_dump(values))
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = json.loads((out / "table.json").read_text())
    assert [row["stage"] for row in rows] == ["random", "xent", "top-2"] and all(row["linear"] > 0 for row in rows)
    assert json.loads((out / "xent" / "linear.json").read_text())["probe"] == "compress"
    assert rows[2]["constraint"] == "labels" and rows[1]["published_transfer"] == 47.8 and rows[1]["transfer"] is None
    heads = (out / "table.md").read_text().splitlines()[0]
    assert "Linear paper" in heads and "Transfer paper" in heads and "R@1 paper" not in heads
    (out / "xent" / "transfer").mkdir()
    (out / "xent" / "transfer" / "result.json").write_text('{"mean": 55.5}')
    chosen = load_plan(plan, [])
    rows = write_results(chosen, build_graphs(chosen, out, plan_dir=tmp_path), out)
    assert rows[1]["transfer"] == 55.5 and "| 55.5 |" in (out / "table.md").read_text()


def test_a_plan_can_be_evaluated_on_other_images(tmp_path: Path) -> None:
    images = make_image_folder(tmp_path / "set")
    stages = [{"name": "xent", "method": {"name": "xent"}}]
    values = {"defaults": {"clips": f"{images}?per_class=4", **DEFAULTS}, "stages": stages}
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    plan.write_text(yaml.safe_dump(values))
    sizes = []
    for other in ([], [f"evaluation.clips={images}"]):
        done = CliRunner().invoke(app, ["cotrain", str(plan), *other, "--out", str(out)], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        sizes.append(json.loads((out / "xent" / "linear.json").read_text())["num_gallery"])
    num_classes = len(list((images / "train").iterdir()))
    assert sizes == [4 * num_classes, sum(1 for _ in (images / "train").glob("*/*"))] and sizes[0] < sizes[1]
    assert not (out / "replaced").exists()  # the second run only evaluates
    assert read_run(out, "plan").clips == str(images)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [("clips={tmp}/sett", "sett"), ("clips={tmp}/set evaluation.split=second", "no split 'second'")],
)
def test_the_images_of_the_evaluation_are_checked_before_training(tmp_path: Path, wrong: str, message: str) -> None:
    images = make_image_folder(tmp_path / "set")
    values = {"defaults": {"clips": str(images), **DEFAULTS}, "stages": [{"name": "xent", "method": {"name": "xent"}}]}
    plan, out = tmp_path / "plan.yaml", tmp_path / "out"
    plan.write_text(yaml.safe_dump(values))
    changes = f"evaluation.{wrong.format(tmp=tmp_path)}".split()
    done = CliRunner().invoke(app, ["cotrain", str(plan), *changes, "--out", str(out)])
    assert isinstance(done.exception, ValueError | OSError) and message in str(done.exception)
    assert not out.exists()
