"""The column "Linear" of a plan: CompRess's probe on augmented images, or the classifier of pre-training."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.config import find_config, load_config
from covid_cmsf.cotrain.plan import PlanConfig
from covid_cmsf.models import load_weights
from tests.factories import make_image_folder

DEFAULTS: dict[str, Any] = {
    "modality": "frame",
    "encoder": "r10_small",
    "views": {"frame_size": 16},
    "batch_size": 8,
    "schedule": {"epochs": 1},
    "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False},
}
XENT = {"name": "xent", "method": {"name": "xent"}, "probe": "classifier"}
FRZPROTO = {"name": "frzproto", "method": {"name": "frzproto"}, "probe": "classifier"}
CMSF = {"name": "top-2", "method": {"name": "cmsf", "constraint": "label", "k": 2, "bank_size": 16}}


def write_plan(folder: Path, images: Path, stages: list[dict[str, Any]], **evaluation: Any) -> Path:
    plan = folder / "plan.yaml"
    values = {"defaults": {"clips": str(images), **DEFAULTS}, "stages": stages, "evaluation": evaluation}
    plan.write_text(yaml.safe_dump(values))
    return plan


def cotrain(plan: Path, out: Path, *changes: str) -> None:
    done = CliRunner().invoke(app, ["cotrain", str(plan), *changes, "--out", str(out)], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def slow_accuracy(checkpoint: Path, images: Path) -> float:
    """One image at a time: head of the encoder's feature, then the largest logit or the nearest prototype."""
    loaded = load_weights(checkpoint, keep_head=True)
    assert loaded.projector is not None
    prototypes = torch.load(checkpoint, weights_only=True)["state"].get("method.prototypes")
    hits = []
    for label, folder in enumerate(sorted((images / "val").iterdir())):
        for path in sorted(folder.iterdir()):
            frame = torch.from_numpy(np.array(Image.open(path).convert("RGB")))[None]
            with torch.no_grad():
                output = loaded.projector(loaded.encoder(loaded.encoder.preprocess(frame)[None]))[0]
            if prototypes is not None:
                output = torch.tensor([float(torch.cosine_similarity(output, one, dim=0)) for one in prototypes])
            hits.append(int(output.argmax()) == label)
    return 100 * sum(hits) / len(hits)


@pytest.mark.slow
def test_a_plan_measures_by_the_classifier_of_pre_training_and_on_augmented_images(tmp_path: Path) -> None:
    images, out = make_image_folder(tmp_path / "set"), tmp_path / "out"
    plan = write_plan(tmp_path, images, [XENT, FRZPROTO, CMSF], probe="compress_augmented")
    cotrain(plan, out)
    results = {name: json.loads((out / name / "linear.json").read_text()) for name in ("xent", "frzproto", "top-2")}
    assert [results[name]["probe"] for name in results] == ["classifier", "classifier", "compress_augmented"]
    for name in ("xent", "frzproto"):
        expected = slow_accuracy(out / name / "checkpoints" / "last.pt", images)
        assert results[name]["scores"]["top1"] == pytest.approx(expected)
        assert results[name]["scores"]["num_videos"] == 9 and results[name]["num_gallery"] == 0
    assert results["top-2"]["num_gallery"] == 24 and (out / "top-2" / "linear" / "best.pt").is_file()
    rows = json.loads((out / "table.json").read_text())
    assert [row["probe"] for row in rows] == ["classifier", "classifier", "compress_augmented"]
    assert [row["linear"] for row in rows] == [results[row["stage"]]["scores"]["top1"] for row in rows]
    # Another query: only evaluated again, and the probe of before is no obstacle.
    before = (out / "top-2" / "checkpoints" / "last.pt").stat().st_mtime_ns
    cotrain(write_plan(tmp_path, images, [CMSF], probe="compress_augmented", query="val", gallery="fit"), out)
    assert json.loads((out / "top-2" / "linear.json").read_text())["query"] == "val"
    assert (out / "top-2" / "checkpoints" / "last.pt").stat().st_mtime_ns == before


@pytest.mark.slow
def test_a_classifier_is_not_tested_on_other_classes(tmp_path: Path) -> None:
    images, other = make_image_folder(tmp_path / "set"), make_image_folder(tmp_path / "other")
    for subset in ("train", "val"):
        (other / subset / "class2").rename(other / subset / "aaa")  # as many, but in another order
    plan, out = write_plan(tmp_path, images, [XENT], clips=str(other)), tmp_path / "out"
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--out", str(out)])
    assert done.exit_code != 0
    assert "was trained on other classes" in (out / "xent" / "log.txt").read_text()


@pytest.mark.parametrize(
    ("stage", "evaluation", "message"),
    [
        ({**CMSF, "probe": "classifier"}, {}, "stage top-2: probe: classifier needs a method that trains one"),
        (CMSF, {"probe": "classifier"}, "set `probe: classifier` per stage"),
        ({"name": "random", "random": "r10_small", "modality": "frame", "probe": "classifier"}, {}, "trained network"),
        (CMSF, {"probe": "compress_augmented", "gallery": "val"}, "trains on the subset train; gallery is 'val'"),
        (CMSF, {"probe": "augmented"}, "compress_augmented"),
        (XENT, {"query": "val", "gallery": "fit"}, "has seen the subset val"),
    ],
)
def test_what_cannot_be_measured_so_is_refused_before_training(
    stage: dict[str, Any], evaluation: dict[str, Any], message: str, tmp_path: Path
) -> None:
    plan, out = write_plan(tmp_path, make_image_folder(tmp_path / "set"), [stage], **evaluation), tmp_path / "out"
    done = CliRunner().invoke(app, ["cotrain", str(plan), "--out", str(out)])
    assert isinstance(done.exception, ValueError) and message in str(done.exception)
    assert not out.exists()


@pytest.mark.parametrize("name", ["table1", "table2", "tableA1", "noisy"])
def test_the_tables_of_images_have_the_papers_protocol_per_row(name: str) -> None:
    plan = load_config(PlanConfig, find_config("plans", f"paper/images/{name}"))
    assert plan.evaluation.probe == "compress_augmented" and plan.stages
    for stage in plan.stages:
        # With wrong labels the paper trains a probe on clean ones for Xent, too.
        own = name != "noisy" and ("xent" in stage.name or "frzproto" in stage.name)
        assert stage.probe == ("classifier" if own else None), stage.name


def test_row_1_of_the_video_table_is_measured_by_its_own_classifier() -> None:
    plan = load_config(PlanConfig, find_config("plans", "paper/video/cotraining"))
    assert [stage.name for stage in plan.stages if stage.probe == "classifier"] == ["01-xent-rgb"]
