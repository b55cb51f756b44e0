"""Files that version 0.1.0 wrote, at commit 29e6343, stay readable: `tests/data/v0`."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from typer.testing import CliRunner, Result

from covid_cmsf.cli.app import app
from covid_cmsf.clips import open_clips
from covid_cmsf.evaluation.features.file import Features, Provenance, load_features, load_probabilities
from covid_cmsf.models import load_encoder, load_guide, load_weights
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.training.config import GuideConfig
from covid_cmsf.training.failures import replay
from covid_cmsf.training.guides import load_guides
from covid_cmsf.training.run import run_training
from tests.training.factories import add_toy, losses, make_config, remove_toy

V0 = Path(__file__).parent / "data" / "v0"
CHECKPOINT = V0 / "cmsf" / "checkpoints" / "last.pt"
OLD_R1 = 42.9  # `evaluate retrieval rgb.features` at that commit


@pytest.fixture(scope="module", autouse=True)
def _toy() -> Iterator[None]:
    add_toy()
    yield
    remove_toy()


@pytest.fixture
def old_run(tmp_path: Path) -> Path:
    """A copy of the run folder."""
    return Path(shutil.copytree(V0 / "cmsf", tmp_path / "cmsf", symlinks=True))


def stored_state(prefix: str) -> dict[str, Tensor]:
    """The tensors under `prefix` in the old checkpoint, read without our code."""
    state: dict[str, Tensor] = torch.load(CHECKPOINT, weights_only=True)["state"]
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}


def assert_same_tensors(actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert expected and actual.keys() == expected.keys()
    assert [key for key in expected if not torch.equal(actual[key], expected[key])] == []


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


@pytest.mark.parametrize("branch", ["online", "target"])
def test_an_old_checkpoint_gives_the_tensors_inside_it(branch: str) -> None:
    loaded = load_weights(CHECKPOINT, branch=branch, keep_head=True)
    assert loaded.projector is not None
    assert_same_tensors(loaded.encoder.state_dict(), stored_state(f"{branch}.encoder."))
    assert_same_tensors(loaded.projector.state_dict(), stored_state(f"{branch}.projector."))
    assert (loaded.metadata.modality, loaded.metadata.input_size) == ("rgb", (8, 32, 32))
    assert loaded.metadata.trained == "cmsf on rgb, 1 epochs"


def test_an_old_checkpoint_serves_as_encoder_and_as_guide() -> None:
    assert_same_tensors(load_encoder(CHECKPOINT).state_dict(), stored_state("online.encoder."))
    assert_same_tensors(load_encoder(V0 / "cmsf").state_dict(), stored_state("online.encoder."))  # the run folder
    assert load_guide(V0 / "cmsf").fingerprint == load_guide(CHECKPOINT).fingerprint
    (guide,) = load_guides([GuideConfig(weights=str(CHECKPOINT), modality="rgb")], flow_style="motion")
    own = guide.network.state_dict()
    assert_same_tensors({k.removeprefix("encoder."): v for k, v in own.items() if k.startswith("encoder.")},
                        stored_state("online.encoder."))  # fmt: skip
    assert guide(torch.zeros(2, 3, 8, 32, 32)).norm(dim=1).allclose(torch.ones(2))


def test_an_old_exported_encoder_loads_with_its_metadata() -> None:
    loaded = load_weights(V0 / "cmsf.safetensors", keep_head=True)
    stored = load_file(V0 / "cmsf.safetensors")
    own = {f"encoder.{key}": tensor for key, tensor in loaded.encoder.state_dict().items()}
    assert loaded.projector is not None
    own |= {f"projector.{key}": tensor for key, tensor in loaded.projector.state_dict().items()}
    assert_same_tensors(own, stored)
    assert loaded.metadata.encoder == "toy" and loaded.metadata.mean == (0.485, 0.456, 0.406)
    assert loaded.metadata.projector is not None and loaded.metadata.projector.sizes == (32, 32, 8)


def test_an_old_features_file_gives_the_same_recall() -> None:
    features = load_features(V0 / "rgb.features")
    assert isinstance(features, Features) and isinstance(features.provenance, Provenance)
    stored = load_file(V0 / "rgb.features")
    assert torch.equal(features.features, stored["features"]) and torch.equal(features.windows, stored["windows"])
    assert features.provenance.branch == "online" and features.protocol == "clean"
    assert features.provenance.weights_sha256 == weights_sha256(load_encoder(CHECKPOINT))
    assert features.videos.subsets.count("test") == 14 and features.videos.subsets.count("train") == 6
    result = run("evaluate", "retrieval", V0 / "rgb.features")
    assert result.exit_code == 0, result.output
    assert f"{OLD_R1}" in result.output


@pytest.mark.parametrize("weights", [CHECKPOINT, V0 / "cmsf"], ids=["checkpoint", "run folder"])
def test_old_features_are_those_that_are_extracted_now(tmp_path: Path, weights: Path) -> None:
    result = run("extract", weights, V0 / "clips", "--out", tmp_path / "new.features", "--workers", 0)
    assert result.exit_code == 0, result.output
    old, new = load_features(V0 / "rgb.features"), load_features(tmp_path / "new.features")
    assert old.videos.ids == new.videos.ids and old.videos.subsets == new.videos.subsets
    torch.testing.assert_close(new.windows, old.windows, rtol=1e-4, atol=1e-5)  # another CPU sums in another order


def test_an_old_probabilities_file_is_read(tmp_path: Path) -> None:
    """Rewritten from the features file, whose header has the same old keys."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    with safe_open(V0 / "rgb.features", framework="pt") as file:
        header: dict[str, Any] = json.loads(file.metadata()["covid_cmsf_features"])
    about = {**header["about"], "recipe": {"val_share": 0.1, "drops": [60], "backbone_factor": 0.1}}
    old = {"covid_cmsf_probabilities": json.dumps({"about": about, "videos": header["videos"]})}
    save_file({"probabilities": torch.full((20, 2), 0.5)}, tmp_path / "old.probabilities", metadata=old)
    read = load_probabilities(tmp_path / "old.probabilities")
    assert read.videos.subsets.count("test") == 14
    assert read.provenance["eval_protocol"]["name"] == "clean" and read.provenance["branch"] == "online"
    assert read.provenance["config"] == {"val_fraction": 0.1, "milestones": [60], "backbone_lr_factor": 0.1}


def test_an_old_clip_store_is_read_and_trained_on(tmp_path: Path) -> None:
    clips = open_clips(str(V0 / "clips"))
    assert len(clips.records) == 20 and clips.modalities == ("rgb", "flow")
    assert clips.read_raw(clips.records[0], "rgb", [0, 5]).shape == (2, 3, 48, 64)
    levels = clips.read_raw(clips.records[0], "flow", [0, 5])
    assert levels.shape == (2, 2, 48, 64)
    flow = clips.read(clips.records[0], "flow", [0, 5])
    torch.testing.assert_close(flow, levels.float() * 40 / 255 - 20, rtol=0, atol=1e-4)  # as version 0.1.0 read it
    method = {
        "name": "cmsf", "bank_size": 8, "num_candidates": 4, "k": 2,
        "head": {"projector": "coclr", "embedding_size": 8},
    }  # fmt: skip
    config = make_config(V0 / "clips", method=method, init=str(CHECKPOINT), schedule={"epochs": 1},
                         guides=[{"weights": str(CHECKPOINT), "modality": "rgb"}])  # fmt: skip
    assert run_training(config, tmp_path / "run") == "finished"
    assert len(losses(tmp_path / "run")) == 1 and all(0 < loss < 4 for loss in losses(tmp_path / "run"))


def test_an_old_run_is_not_resumed_and_one_line_says_why(old_run: Path) -> None:
    before = {path: path.read_bytes() for path in old_run.rglob("*") if path.is_file()}
    result = run("train", old_run)
    assert isinstance(result.exception, ValueError)  # exit code 2
    message = str(result.exception)
    assert str(old_run) in message and "format 1" in message and "init=" in message and "\n" not in message
    assert {path: path.read_bytes() for path in old_run.rglob("*") if path.is_file()} == before
    with pytest.raises(ValueError, match="format 1"):
        run_training(make_config(V0 / "clips"), old_run)


def test_an_old_failed_step_is_not_replayed_and_one_line_says_why(tmp_path: Path) -> None:
    values = torch.load(CHECKPOINT, weights_only=True)
    torch.save({**values, "failed": {"rows": None}}, tmp_path / "failed-step-1.pt")
    with pytest.raises(ValueError, match="format 1") as error:
        replay(tmp_path / "failed-step-1.pt")
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_a_report_reads_an_old_run(old_run: Path, tmp_path: Path) -> None:
    result = run("report", old_run, "--out", tmp_path / "page", "--no-thumbnails", "--no-umap")
    assert result.exit_code == 0, (result.output, result.exception)
    assert (tmp_path / "page" / "index.html").is_file()
    data = "".join(path.read_text() for path in (tmp_path / "page" / "data").glob("*.js"))
    assert "2.2414" in data, "the loss of the old metrics"
    assert "118.3" in data, "and its speed, which had another name"
