"""The 2D mode: images train by every method, with wrong labels and with few, and are evaluated like videos."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.config import validate
from covid_cmsf.training.config import LabelConfig, TrainConfig
from covid_cmsf.training.data import open_data, visible_labels
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from tests.factories import make_image_folder
from tests.training.factories import differing

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

BANK = {"bank_size": 32}
METHODS: dict[str, dict[str, Any]] = {
    "top-2": {"name": "cmsf", "constraint": "label", "k": 2, **BANK},
    "top-all": {"name": "cmsf", "constraint": "label", "k": "all", **BANK},
    "target out": {"name": "cmsf", "constraint": "label", "k": 2, "include_target": False, **BANK},
    "two banks": {"name": "cmsf", "constraint": "two_bank", "k": 2, "labeled_bank_size": 16, **BANK},
    "2Q": {"name": "cmsf_2q", "k": 2, **BANK},
    "KM": {"name": "cmsf_km", "k": 2, "num_clusters": 4, **BANK},
    "msf": {"name": "msf", "k": 2, **BANK},
    "byol": {"name": "byol_asym", **BANK},
    "supcon": {"name": "supcon", **BANK},
    "protonw": {"name": "protonw", **BANK},
    "frzproto mlp": {"name": "frzproto"},
    "frzproto linear": {"name": "frzproto", "head": {"projector": "linear"}},
    "xent": {"name": "xent"},
}


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of eight training and three test images."""
    return make_image_folder(tmp_path_factory.mktemp("images") / "set")


def values(images: Path, **changes: Any) -> dict[str, Any]:
    return {
        "clips": str(images),
        "modality": "frame",
        "encoder": "r10_small",
        "method": METHODS["top-2"],
        "views": {"frame_size": 16},
        "batch_size": 8,
        "optimizer": {"name": "sgd", "lr": 0.05, "weight_decay": 1e-4},
        "schedule": {"epochs": 1, "name": "cosine"},
        "logging": {"interval": 1},
        "runtime": {"device": "cpu", "workers": 0, "threads": 1, "tensorboard": False},
        **changes,
    }


def make_config(images: Path, **changes: Any) -> TrainConfig:
    return validate(TrainConfig, values(images, **changes), origin="a test")


@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_on_images_from_the_command_line(method: str, images: Path, tmp_path: Path) -> None:
    labels = {"fraction": 0.5} if method == "two banks" else {}
    config = tmp_path / "run.yaml"
    config.write_text(yaml.safe_dump(values(images, method=METHODS[method], labels=labels)))
    done = CliRunner().invoke(app, ["train", str(config), f"--out={tmp_path / 'run'}"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [line["step"] for line in lines] == [1, 2, 3] and all(0 <= line["loss"] < 20 for line in lines)


@pytest.mark.parametrize("pairing", ["weak_strong", "strong_strong", "strong_weak", "weak_weak", "std_std"])
def test_every_pair_of_augmentations_trains(pairing: str, images: Path, tmp_path: Path) -> None:
    chosen = make_config(images, views={"frame_size": 16, "pairing": pairing})
    assert run_training(chosen, tmp_path) == "finished"


def test_images_are_not_taken_for_videos(images: Path) -> None:
    with pytest.raises(ValueError, match="these are images, not videos.*modality=frame"):
        open_data(make_config(images, modality="rgb"), online=["rgb"], target=["rgb"])


@pytest.mark.slow
def test_the_same_noise_from_a_rate_and_from_a_file_is_the_same_run(images: Path, tmp_path: Path) -> None:
    noisy = tmp_path / "corrupt_50percent.txt"
    done = CliRunner().invoke(app, ["labels", "noise", str(images), "--rate=0.5", "--seed=4", f"--out={noisy}"])
    assert done.exit_code == 0, done.output
    for name, labels in (("rate", {"noise": 0.5, "seed": 4}), ("file", {"file": str(noisy)}), ("clean", {})):
        assert run_training(make_config(images, labels=labels), tmp_path / name) == "finished"
    differences = differing(tmp_path / "rate", tmp_path / "file")
    assert all(place.startswith("config.labels") for place in differences), differences
    assert any(place.startswith("state") for place in differing(tmp_path / "rate", tmp_path / "clean"))


def test_purity_under_noise_is_measured_by_true_labels(images: Path, tmp_path: Path) -> None:
    for name, noise in (("noisy", 0.5), ("clean", 0.0)):
        method = {"name": "cmsf", "constraint": "label", "k": "all", **BANK}
        assert run_training(make_config(images, method=method, labels={"noise": noise}), tmp_path / name) == "finished"
    noisy, clean = (read_metrics(tmp_path / name / "metrics.jsonl")[-1]["purity"] for name in ("noisy", "clean"))
    assert clean == 1 and 0.2 < noisy < 0.8


def test_a_label_file_picks_the_images_too(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "some.txt"
    path.write_text("".join(f"class0/train_0_{i}.png 1\nclass2/train_2_{i}.png 0\n" for i in range(4)))
    data = open_data(make_config(images, labels={"file": str(path)}), online=["frame"], target=["frame"])
    assert len(data.views) == 8
    assert data.labels.tolist() == [1] * 4 + [0] * 4 and [r.label for r in data.views.records] == [0] * 4 + [2] * 4
    path.write_text("class9/gone.png 1\n")
    with pytest.raises(ValueError, match="lists 1 names that are not in this subset, the first: class9/gone.png"):
        open_data(make_config(images, labels={"file": str(path)}), online=["frame"], target=["frame"])


def test_a_list_of_known_labels_hides_the_others(images: Path, tmp_path: Path) -> None:
    path = tmp_path / "few.txt"
    path.write_text("train_0_1.png\ntrain_2_5.png\n")
    data = open_data(make_config(images, labels={"known": str(path)}), online=["frame"], target=["frame"])
    assert sorted(data.labels.tolist()) == [-1] * 22 + [0, 2]


def test_labels_have_one_origin() -> None:
    for wrong in ({"file": "a", "noise": 0.1}, {"known": "a", "fraction": 0.1}):
        with pytest.raises(ValueError, match="leave labels"):
            validate(LabelConfig, wrong, origin="a test")


def test_other_labels_are_not_continued_with(images: Path, tmp_path: Path) -> None:
    """The same settings, but the file's contents have changed between two starts."""
    path = tmp_path / "labels.txt"
    lines = [f"class{c}/train_{c}_{i}.png {c}" for c in range(3) for i in range(8)]
    path.write_text("\n".join(lines))
    chosen = make_config(images, labels={"file": str(path)}, schedule={"epochs": 2})
    assert run_training(chosen, tmp_path / "run") == "finished"
    path.write_text("\n".join([lines[0][:-1] + "1", *lines[1:]]))
    with pytest.raises(ValueError, match="have changed since this run began"):
        run_training(chosen, tmp_path / "run")


def test_noise_comes_before_few_labels(images: Path) -> None:
    records = open_data(make_config(images), online=["frame"], target=["frame"]).views.records
    noisy = visible_labels(records, LabelConfig(noise=0.5, seed=1))
    both = visible_labels(records, LabelConfig(noise=0.5, fraction=0.5, seed=1))
    known = both >= 0
    assert torch.equal(both[known], noisy[known]) and 0 < int(known.sum()) < len(both)


@pytest.mark.slow
def test_images_are_extracted_and_measured_like_videos(images: Path, tmp_path: Path) -> None:
    longer = make_config(images, method=METHODS["xent"], schedule={"epochs": 12})
    assert run_training(longer, tmp_path / "run") == "finished"
    checkpoint, run, features = tmp_path / "run" / "checkpoints" / "last.pt", CliRunner(), tmp_path / "f.safetensors"

    def covid_cmsf(*args: object) -> str:
        done = run.invoke(app, [str(arg) for arg in args], catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.output

    covid_cmsf("extract", checkpoint, images, "--out", features, "--workers", 0)
    for command in (["linear"], ["linear", "--probe=compress"], ["knn", "--k=1", "--k=5", "--center=none"]):
        found = json.loads(covid_cmsf("evaluate", command[0], features, *command[1:], "--json"))
        top1 = found["top1"]["1"] if command[0] == "knn" else found["scores"]["top1"]
        assert top1 > 40, command  # chance is 33; the value depends on the CPU
    args = ["--probe=compress", "--workers=0", "--epochs=3", "--batch-size=8", "--json"]
    found = json.loads(covid_cmsf("evaluate", "linear", checkpoint, images, "--out", tmp_path / "probe", *args))
    assert found["mode"] == "compress" and found["num_val"] == 0 and found["scores"]["num_videos"] == 9
