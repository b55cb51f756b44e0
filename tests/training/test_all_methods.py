"""Every method trains through the command line, leaves a checkpoint that loads, and tells what it does."""

import json
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.methods.registry import MethodConfig
from covid_cmsf.models import load_encoder
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from tests.training.command import write_config_file
from tests.training.factories import make_config

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

ALWAYS = {"step", "epoch", "loss", "lr", "samples_per_s", "data_fraction", "seconds", "num_replaced"}
BANK = {"bank_filled", "bank_age", "embedding_std", "effective_rank", "ema_momentum", "purity_free"}
# method: what else it tells
METHODS: dict[str, set[str]] = {
    "cmsf": BANK | {"purity", "purity_candidates", "agreement"},
    "cmsf_2q": BANK | {"purity", "purity_candidates", "agreement"},
    "cmsf_km": BANK | {"purity"},
    "msf": BANK,
    "byol_asym": BANK,
    "infonce": BANK | {"own_key_first"},
    "ubernce": BANK | {"own_key_first"},
    "supcon": BANK | {"own_key_first"},
    "coclr": BANK | {"own_key_first", "purity", "agreement"},
    "protonw": BANK,
    "frzproto": {"accuracy"},
    "xent": {"accuracy"},
}
CMSF: dict[str, Any] = {"name": "cmsf", "bank_size": 16, "k": 2, "num_candidates": 4}


def train(config: Path, out: Path, *args: str) -> None:
    done = CliRunner().invoke(app, ["train", str(config), f"--out={out}", *args], catch_exceptions=False)
    assert done.exit_code == 0, done.output


def test_no_method_is_forgotten() -> None:
    union = get_args(get_args(MethodConfig)[0])
    assert {get_args(one.model_fields["name"].annotation)[0] for one in union} == set(METHODS)


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_every_method_trains_from_the_command_line(
    method: str, clips: Path, flow_weights: Path, tmp_path: Path
) -> None:
    config = write_config_file(make_config(clips, encoder="s3d_tiny"), tmp_path / "run.yaml")
    values = yaml.safe_load(config.read_text())
    values["method"] = {"name": method}
    if method not in ("frzproto", "xent"):
        values["method"]["bank_size"] = 16
    if method in ("cmsf", "coclr"):
        values["guides"] = [{"weights": str(flow_weights), "modality": "flow"}]
    if method == "coclr":
        values["method"]["bank_warmup"] = 8
    config.write_text(yaml.safe_dump(values))
    train(config, tmp_path / "run", "schedule.epochs=1", "runtime.loggers=[tensorboard]", "logging.interval=2")
    folder = tmp_path / "run"
    assert load_encoder(folder / "checkpoints" / "last.pt").name == "s3d_tiny"
    lines = read_metrics(folder / "metrics.jsonl")
    assert [line["step"] for line in lines] == [2, 4, 5]  # every second, and the last
    assert lines[-1].keys() == ALWAYS | METHODS[method]
    assert {path.name for path in folder.iterdir()} >= {
        "config.yaml",
        "environment.jsonl",
        "tensorboard",
        "checkpoints",
    }
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["progress"]["step"] == 5 and summary["last"]["loss"] == lines[-1]["loss"]
    environment = json.loads((folder / "environment.jsonl").read_text())
    assert environment["versions"]["torch"] and environment["git"]["commit"] and environment["processes"] == 1


GUIDES: dict[str, list[dict[str, Any]]] = {
    "none": [{}],
    "views": [{"cache": "views", "cached_views": 2}],
    "mean_center": [{"cache": "mean", "cached_views": 2, "center": True}],
    "encoder": [{"layer": "encoder"}],
    "target_branch": [{"branch": "target"}],
    "image": [{"modality": "frame", "layer": "encoder"}],
    "two": [{}, {"modality": "frame", "layer": "encoder", "cache": "views"}],
    "two_of_a_kind": [{}, {"branch": "target"}],
}


KINDS = [(kind, "union") for kind in GUIDES] + [("two", "intersection")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "combine"), KINDS)
def test_cmsf_takes_every_kind_of_guide(
    kind: str, combine: str, clips: Path, flow_weights: Path, frame_weights: Path, tmp_path: Path
) -> None:
    weights = {"flow": str(flow_weights), "frame": str(frame_weights)}
    guides = [{"modality": "flow", **one} for one in GUIDES[kind]]
    guides = [{"weights": weights[one["modality"]], **one} for one in guides]
    chosen = make_config(clips, method={**CMSF, "combine": combine}, guides=guides, schedule={"epochs": 1})
    train(write_config_file(chosen, tmp_path / "run.yaml"), tmp_path / "run")
    last = read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]
    assert 0 <= last["agreement"] <= 1 and 0 <= last["purity"] <= 1
    caches = {f"guide_{one['modality']}.safetensors" for one in guides if one.get("cache", "none") != "none"}
    assert {path.name for path in (tmp_path / "run").glob("*.safetensors")} == caches


@pytest.mark.slow
@pytest.mark.parametrize("modality", ["flow", "residual_flow", "rgbdiff", "frame"])
def test_every_modality_trains(modality: str, clips: Path, tmp_path: Path) -> None:
    encoder = "r18" if modality == "frame" else "toy"
    chosen = make_config(clips, modality=modality, encoder=encoder, schedule={"epochs": 1})
    train(write_config_file(chosen, tmp_path / "run.yaml"), tmp_path / "run")
    assert load_encoder(tmp_path / "run" / "checkpoints" / "last.pt").name == encoder


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_trains(precision: str, clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, precision=precision, method={"name": "msf", "bank_size": 16})
    train(write_config_file(chosen, tmp_path / "run.yaml"), tmp_path / "run")
    assert all(line["loss"] < 4 for line in read_metrics(tmp_path / "run" / "metrics.jsonl"))


DRIFTING: tuple[dict[str, Any], ...] = (
    {"name": "infonce", "bank_size": 16}, {"name": "msf", "bank_size": 16},
    {"name": "cmsf", "constraint": "label", "bank_size": 16},
    {"name": "supcon", "bank_size": 16}, {"name": "xent"},
)  # fmt: skip


@pytest.mark.parametrize("method", DRIFTING, ids=lambda method: method["name"])
def test_bf16_starts_with_the_loss_of_fp32_within_two_percent(
    method: dict[str, Any], clips: Path, tmp_path: Path
) -> None:
    losses = []
    for precision in ("auto", "fp32", "bf16"):
        config = make_config(clips, precision=precision, method=method, schedule={"epochs": 1})
        run_training(config, tmp_path / precision)
        losses.append([line["loss"] for line in read_metrics(tmp_path / precision / "metrics.jsonl") if "loss" in line])
    assert losses[0] == losses[1], "auto is fp32 on a CPU, to the last bit"
    exact, half = ([loss for loss in one if loss] for one in losses[1:])  # without negatives InfoNCE starts at 0
    assert half != exact and half[0] == pytest.approx(exact[0], rel=0.02)
    assert np.isfinite(half).all()  # no bound for later steps: other neighbors are chosen, and differences grow


def test_decoded_clips_may_be_kept_in_memory_or_in_a_file(clips: Path, tmp_path: Path) -> None:
    config = write_config_file(make_config(clips, schedule={"epochs": 1}), tmp_path / "run.yaml")
    train(config, tmp_path / "store")
    train(config, tmp_path / "memory", "--cache-gb", "0.1")
    train(config, tmp_path / "file", f"runtime.cache_dir={tmp_path / 'decoded'}")
    store, *cached = (read_metrics(tmp_path / name / "metrics.jsonl") for name in ("store", "memory", "file"))
    for one in cached:
        assert [line["loss"] for line in one] == [line["loss"] for line in store]
    assert list((tmp_path / "decoded").glob("rgb-*.u8"))
