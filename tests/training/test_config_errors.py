"""What a user can get wrong is one line that names the value, the place and what would be accepted."""

import csv
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from covid_cmsf.devices import choose_device
from covid_cmsf.training.build import build_components
from covid_cmsf.training.distributed import distributed_context
from covid_cmsf.training.run import run_training
from tests.training.command import Command, write_config_file
from tests.training.factories import make_config

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

GUIDE = {"weights": "x.pt", "modality": "flow"}
CMSF = {"name": "cmsf", "bank_size": 16}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": CMSF}, "cmsf needs a guide: guides=[{weights: FILE, modality: flow}]"),
        ({"method": {"name": "coclr", "bank_size": 16}}, "coclr needs a guide"),
        ({"method": {"name": "coclr", "bank_size": 16}, "guides": [GUIDE, GUIDE]}, "2 guides are given; coclr takes 1"),
        ({"method": {"name": "msf", "bank_size": 16}, "guides": [GUIDE]}, "but msf (as configured) uses none"),
        ({"method": {**CMSF, "constraint": "label"}, "guides": [GUIDE]}, "but cmsf (as configured) uses none"),
        ({"method": {"name": "mfs"}}, "method.name = 'mfs': did you mean 'msf'?"),
        ({"method": {"name": "simclr"}}, "method.name = 'simclr': known here: cmsf, cmsf_2q, cmsf_km, msf, byol_asym"),
        ({"method": {"bank_size": 16}}, "'method.name' is missing"),
        (
            {"method": {"name": "infonce", "temprature": 1}},
            "unknown key 'method.temprature'; did you mean 'method.temperature'",
        ),
        ({"method": {"name": "msf", "num_candidates": 3}}, "unknown key 'method.num_candidates'; known here: name"),
        (
            {"method": {**CMSF, "head": {"reuze": True}}},
            "unknown key 'method.head.reuze'; did you mean 'method.head.reuse'?",
        ),
        ({"method": {**CMSF, "head": {"reuse": True}}, "guides": [GUIDE]}, "reuse takes the projector of `init`"),
        ({"method": {**CMSF, "k": 0}, "guides": [GUIDE]}, "method.k = 0"),
        ({"method": {"name": "infonce", "bank_size": 3}}, "method.bank_size 3 cannot hold a batch of 4"),
        ({"guides": [{**GUIDE, "center": True}], "method": CMSF}, "guides.0: center needs cache"),
        (
            {"guides": [{**GUIDE, "modality": "depth"}], "method": CMSF},
            "unknown modality 'depth'; choose from rgb, flow",
        ),
        (
            {"modality": "depth"},
            "modality = 'depth': unknown modality 'depth'; choose from rgb, flow, residual_flow, motion, ",
        ),
        ({"batch_norm": {"groups": 3}}, "batch_size 4 cannot be cut into 3 equal groups"),
        ({"optimizer": {"momentum": 0.9}}, "unknown key 'optimizer.momentum'; did you mean 'optimizer.sgd_momentum'?"),
        ({"optimizer": {"lr": -1}}, "optimizer.lr = -1"),
        ({"precision": "fp8"}, "precision = 'fp8': input should be 'auto', 'fp32', 'bf16' or 'fp16'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        make_config(Path("clips"), **changes)
    assert message in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "s3dd"}, "unknown encoder 's3dd'; choose from c21d_tiny"),
        ({"split": "9"}, "no split '9'; these clips have splits: 1, 2, 3"),
        ({"subset": "val"}, "no video in subset 'val' of split '1'; it has: test, train"),
        ({"batch_size": 22, "method": {"name": "xent"}}, "21 videos do not fill one batch of 22"),
        ({"optimizer": {"accumulate": 6}}, "an epoch has 5 batches, fewer than optimizer.accumulate = 6"),
        ({"runtime": {"device": "gpu"}}, "unknown device 'gpu'; for example auto, cpu, cuda"),
        ({"views": {"size": 8}, "encoder": "s3d_tiny"}, "too small for s3d_tiny"),
    ],
)
def test_settings_that_do_not_fit_the_data_are_refused(
    changes: dict[str, Any], message: str, clips: Path, tmp_path: Path
) -> None:
    with pytest.raises(ValueError) as caught:
        run_training(make_config(clips, **changes), tmp_path / "run")
    assert message in str(caught.value)


@pytest.fixture
def unlabeled(clips: Path, tmp_path: Path) -> Path:
    """The same clips, as if nobody knew what they show."""
    shutil.copytree(clips, tmp_path / "unlabeled")
    path = tmp_path / "unlabeled" / "manifest.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "label": -1, "class_name": ""} for row in rows)
    return path.parent


@pytest.mark.parametrize("method", ["ubernce", "supcon", "protonw", "frzproto", "xent"])
def test_methods_that_learn_from_labels_need_some(method: str, unlabeled: Path) -> None:
    with (
        distributed_context("cpu") as alone,
        pytest.raises(ValueError, match=f"{method} learns from labels, and .* has none"),
    ):
        rows = {} if method in ("frzproto", "xent") else {"bank_size": 16}
        build_components(make_config(unlabeled, method={"name": method, **rows}), alone)


@pytest.mark.parametrize("constraint", ["label", "two_bank"])
def test_label_constraints_need_labels(constraint: str, unlabeled: Path) -> None:
    with distributed_context("cpu") as alone, pytest.raises(ValueError, match="cmsf learns from labels"):
        build_components(make_config(unlabeled, method={**CMSF, "constraint": constraint}), alone)


@pytest.mark.parametrize("method", ["infonce", "msf", "byol_asym"])
def test_other_methods_do_without_labels(method: str, unlabeled: Path, tmp_path: Path) -> None:
    chosen = make_config(unlabeled, method={"name": method, "bank_size": 16}, schedule={"epochs": 1})
    assert run_training(chosen, tmp_path / method) == "finished"


@pytest.mark.slow
def test_the_command_says_it_in_one_line_and_ends_with_2(clips: Path, tmp_path: Path) -> None:
    config, log = write_config_file(make_config(clips), tmp_path / "run.yaml"), tmp_path / "log"
    wrong = [
        (["train", config, "method.temprature=1"], "did you mean 'method.temperature'?"),
        (["train", config, "batch_size=22", "method.bank_size=32"], "do not fill one batch of 22"),
        (["train", tmp_path / "nowhere.yaml"], "no configuration file"),
        (["train", config, f"clips={tmp_path / 'nowhere'}"], "nowhere"),
        (["train", config, "method=infonce"], "method = 'infonce'"),
    ]
    for number, (args, expected) in enumerate(wrong):
        command = Command(*args, "--out", tmp_path / f"run-{number}", log=log.with_suffix(f".{number}"))
        assert command.end() == 2, command.said()
        assert command.said().startswith("error: ") and expected in command.said() and "Traceback" not in command.said()


def test_all_damaged_checkpoints_are_an_error_with_2(clips: Path, tmp_path: Path) -> None:
    run_training(make_config(clips), tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoints").glob("step-*.pt"):
        path.write_bytes(path.read_bytes()[:1000])
    command = Command("train", tmp_path / "run", log=tmp_path / "log")
    assert command.end() == 2, command.said()
    assert "no checkpoint in" in command.said() and "Traceback" not in command.said()
    assert (tmp_path / "run" / "log.txt").read_text().count("is damaged (its hash is wrong)") == 2


def test_a_method_given_as_a_file_of_nothing_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump({"method": {"name": "xent"}}))
    command = Command("train", tmp_path / "run.yaml", log=tmp_path / "log")
    assert command.end() == 2 and "'clips' is missing" in command.said()


def test_devices_are_chosen_by_rank() -> None:
    assert str(choose_device("cpu", local_rank=3)) == "cpu"
    with pytest.raises(ValueError, match="unknown device 'gpu'"):
        choose_device("gpu")
