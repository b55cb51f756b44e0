"""`covid-cmsf models` and `covid-cmsf weights` as a user types them."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from covid_cmsf.cli import models
from covid_cmsf.models import create_model, list_models, load_encoder, load_weights
from covid_cmsf.models.checkpoints.formats.coclr import to_coclr

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


def run(app: object, *args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])  # type: ignore[arg-type]


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A small encoder in CoCLR's layout, with a head."""
    head = {
        "0.weight": torch.randn(8, 256),
        "0.bias": torch.ones(8),
        "2.weight": torch.randn(4, 8),
        "2.bias": torch.ones(4),
    }
    path = tmp_path / "coclr.pth.tar"
    torch.save({"epoch": 1, "state_dict": to_coclr(create_model("s3d_tiny").state_dict(), head)}, path)
    return path


@pytest.mark.slow
def test_list_shows_every_encoder() -> None:
    rows = json.loads(run(models.models_app, "list", "--json").stdout)
    assert [row["name"] for row in rows] == list_models()
    s3d = next(row for row in rows if row["name"] == "s3d")
    assert s3d["num_parameters"] == 7_910_048 and s3d["num_features"] == 1024 and 11 < s3d["gflops"] < 12
    assert "7,910,048" in run(models.models_app, "list").stdout


@pytest.mark.parametrize("name", list_models())
def test_describe_shows_the_layers(name: str) -> None:
    result = run(models.models_app, "describe", name)
    assert result.exit_code == 0 and "feature of" in result.stdout


def test_describe_takes_a_size_and_refuses_a_bad_one() -> None:
    layers = json.loads(run(models.models_app, "describe", "s3d", "--size", "16x112x112", "--json").stdout)["layers"]
    assert layers[-1]["output"] == [1024, 2, 3, 3]
    assert "too small for s3d" in str(run(models.models_app, "describe", "s3d", "--size", "1x112x112").exception)
    assert "choose from" in str(run(models.models_app, "describe", "nothing").exception)


def test_import_writes_a_file_with_what_the_user_said(foreign: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    options = ("--modality", "flow", "--trained", "CoCLR", "--size", "16x64x64", "--head")
    result = run(models.weights_app, "import", foreign, "--out", out, *options)
    assert result.exit_code == 0 and "all 462 tensors loaded" in result.stdout
    loaded = load_weights(out, keep_head=True)
    assert (loaded.metadata.modality, loaded.metadata.trained, loaded.metadata.input_size) == (
        "flow",
        "CoCLR",
        (16, 64, 64),
    )
    assert loaded.projector is not None and loaded.projector.layout.sizes == (256, 8, 4)


def test_import_reports_adapted_channels(foreign: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    result = run(models.weights_app, "import", foreign, "--out", out, "--channels", "2", "--adapt", "2,1")
    assert "3 -> 2 channels (2,1)" in result.stdout and load_encoder(out).in_channels == 2


def test_import_takes_pixel_statistics_and_checks_their_number(foreign: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.safetensors"
    run(models.weights_app, "import", foreign, "--out", out, "--mean", "0.1,0.2,0.3", "--std", "1,2,3")
    assert load_weights(out).metadata.mean == (0.1, 0.2, 0.3) and load_weights(out).metadata.std == (1.0, 2.0, 3.0)
    result = run(models.weights_app, "import", foreign, "--out", out, "--force", "--mean", "0.1")
    assert "mean and std need one value for each of 3 channels, not 1 and 3" in str(result.exception)
    result = run(models.weights_app, "import", foreign, "--out", out, "--force", "--mean", "a,b")
    assert "is not a list of numbers" in str(result.exception)


def test_show_lists_left_over_keys(foreign: Path) -> None:
    assert "unused: encoder_q.2.weight" in run(models.weights_app, "show", foreign, "--verbose").stdout
    report = json.loads(run(models.weights_app, "show", foreign, "--json").stdout)["report"]
    assert "encoder_q.4.bias" in report["unused_keys"]


def test_outputs_are_not_replaced_unless_forced(foreign: Path, tmp_path: Path) -> None:
    result = run(models.weights_app, "import", foreign, "--out", foreign)
    assert isinstance(result.exception, FileExistsError) and "--force" in str(result.exception)
    result = run(models.weights_app, "import", foreign, "--out", tmp_path / "no" / "x.safetensors")
    assert isinstance(result.exception, FileNotFoundError) and "no folder" in str(result.exception)


@pytest.mark.slow
@pytest.mark.parametrize(("to", "name"), [("onnx", "x.onnx"), ("torch-export", "x.pt2"), ("coclr", "x.pth.tar")])
def test_export_writes_and_checks(foreign: Path, tmp_path: Path, to: str, name: str) -> None:
    result = run(models.weights_app, "export", foreign, "--to", to, "--out", tmp_path / name)
    assert result.exit_code == 0, result.output
    assert "largest difference" in result.stdout and (tmp_path / name).stat().st_size > 1_000_000


def test_export_of_a_head_needs_a_layout_that_has_one(foreign: Path, tmp_path: Path) -> None:
    result = run(models.weights_app, "export", foreign, "--to", "onnx", "--head", "--out", tmp_path / "x.onnx")
    assert "--head goes with --to coclr" in str(result.exception)
    result = run(models.weights_app, "export", foreign, "--to", "coclr", "--head", "--out", tmp_path / "x.tar")
    assert load_weights(tmp_path / "x.tar", keep_head=True).projector is not None
