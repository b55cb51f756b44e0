"""CoCLR's checkpoints, with exactly their keys, in and out."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models.video import s3d as torchvision_s3d

from covid_cmsf.models import MLP, HeadLayout, create_model, load_encoder, load_guide, load_weights
from covid_cmsf.models.checkpoints.export import export_coclr
from covid_cmsf.models.checkpoints.formats.coclr import coclr_keys, to_coclr
from covid_cmsf.models.checkpoints.formats.torchvision import torchvision_s3d_keys
from tests.models.factories import DATA, coclr_checkpoint, coclr_s3d

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

KEY_MAP: dict[str, str] = json.loads((DATA / "coclr_to_torchvision_s3d.json").read_text())


@pytest.fixture(scope="module")
def coclr_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CoCLR checkpoint as their training writes it, in the file format of their torch 1.4."""
    path = tmp_path_factory.mktemp("coclr") / "epoch99.pth.tar"
    contents = {
        "epoch": 99,
        "state_dict": coclr_checkpoint("coclr"),
        "best_acc": 0.5,
        "optimizer": {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 1e-3}]},
        "iteration": 1234,
    }
    torch.save(contents, path, _use_new_zipfile_serialization=False)
    return path


def torchvision_features(state: dict[str, torch.Tensor]) -> nn.Module:
    """torchvision's S3D trunk with CoCLR's numbers through the verified key map, eps 1e-5."""
    twin = torchvision_s3d()
    twin.load_state_dict({theirs: state[key] for key, theirs in KEY_MAP.items()}, strict=False)
    for module in twin.modules():
        if isinstance(module, nn.BatchNorm3d):
            module.eps = 1e-5
    trunk: nn.Module = twin.features.eval()
    return trunk


@pytest.mark.slow
@pytest.mark.parametrize(("branch", "prefix"), [(None, "encoder_q"), ("target", "encoder_k"), ("sampler", "sampler")])
def test_each_part_gives_the_features_of_torchvision(coclr_file: Path, branch: str | None, prefix: str) -> None:
    encoder = load_encoder(coclr_file, branch=branch)
    state = coclr_checkpoint("coclr")
    twin = torchvision_features({key: state[f"{prefix}.0.{key}"] for key in KEY_MAP})
    clip = torch.randn(1, 3, 16, 48, 48)
    with torch.inference_mode():
        ours, theirs = encoder.forward_features(clip), twin(clip)
        precise, their_precise = encoder.double().forward_features(clip.double()), twin.double()(clip.double())
    scale = theirs.abs().max().item()
    assert not encoder.training and scale > 1e-3
    assert (ours - theirs).abs().max() <= 1e-5 * scale  # fp32 sums in another order
    assert (precise - their_precise).abs().max() <= 1e-12 * scale


def test_report_names_what_was_taken_and_every_key_left_over(coclr_file: Path) -> None:
    loaded = load_weights(coclr_file)
    report = loaded.report
    assert (report.layout, report.encoder) == ("CoCLR or InfoNCE pretraining checkpoint", "s3d")
    assert (report.branch, report.num_loaded, report.num_duplicates) == ("online (encoder_q)", 462, 462)
    state = coclr_checkpoint("coclr")
    expected = {key for key in state if not key.startswith("encoder_q.0.")}
    assert set(report.unused_keys) == expected | {"epoch", "best_acc", "optimizer", "iteration"}
    assert "queue_vname" in " ".join(report.lines()) and loaded.metadata.bn_eps == 1e-5


@pytest.mark.slow
def test_guide_uses_the_projection_head(coclr_file: Path) -> None:
    guide = load_guide(coclr_file, branch="guide")
    state = coclr_checkpoint("coclr")
    clip = torch.randn(2, 3, 8, 32, 32)
    with torch.inference_mode():
        x = load_encoder(coclr_file, branch="guide")(clip)
        for layer in ("2", "4"):  # their head is made of convolutions over one point
            weight, bias = state[f"sampler.{layer}.weight"], state[f"sampler.{layer}.bias"]
            x = nn.functional.conv3d(x.reshape(2, -1, 1, 1, 1), weight, bias)
            x = x.relu() if layer == "2" else x
        slow = torch.stack([row / row.norm() for row in x.reshape(2, -1)])
        torch.testing.assert_close(guide(clip), slow, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("keys", ["names", "blocks", "both", "module"])
def test_either_set_of_names_is_enough(tmp_path: Path, keys: str) -> None:
    state = coclr_s3d(0)
    wanted = {key: value for key, value in state.items() if keys == "both" or ("block" in key) == (keys == "blocks")}
    prefix = "module.encoder_q.0." if keys == "module" else "encoder_q.0."
    torch.save({"state_dict": {prefix + key: value for key, value in wanted.items()}}, tmp_path / "x.pth")
    loaded = load_encoder(tmp_path / "x.pth").state_dict()
    assert all(torch.equal(loaded[f"trunk.{key}"], state[key]) for key in KEY_MAP)


def test_two_names_with_different_numbers_are_an_error(tmp_path: Path) -> None:
    state = {f"encoder_q.0.{key}": value for key, value in coclr_s3d(0).items()}
    state["encoder_q.0.block4.1.branch0.0.conv.weight"] = state["encoder_q.0.block4.1.branch0.0.conv.weight"] + 1
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"Mixed_4b.branch0.0.conv.weight and .*block4.1.*differ"):
        load_encoder(tmp_path / "x.pth")


@pytest.mark.parametrize(
    "head", [{"final_bn.weight": [1024], "final_fc.0.weight": [101, 1024]}, {"final_fc.1.weight": [101, 1024]}]
)
def test_classifier_files_give_their_backbone(tmp_path: Path, head: dict[str, list[int]]) -> None:
    state = {f"backbone.{key}": value for key, value in coclr_s3d(3).items()}
    torch.save({"epoch": 1, "state_dict": {**state, **{k: torch.ones(v) for k, v in head.items()}}}, tmp_path / "c.pth")
    loaded = load_weights(tmp_path / "c.pth")
    assert loaded.report.layout == "CoCLR classifier"
    assert set(loaded.report.unused_keys) == {*head, "epoch"}
    key = "Mixed_5c.branch3.1.conv.weight"
    assert torch.equal(loaded.encoder.state_dict()[f"trunk.{key}"], state[f"backbone.{key}"])


def test_a_part_that_is_not_there_lists_those_that_are(tmp_path: Path) -> None:
    torch.save({"state_dict": coclr_checkpoint("infonce")}, tmp_path / "i.pth")
    with pytest.raises(ValueError, match=r"no branch 'guide'; it has: online \(encoder_q\), target \(encoder_k\)"):
        load_encoder(tmp_path / "i.pth", branch="guide")


def test_our_name_tables_are_the_verified_ones() -> None:
    encoder = create_model("s3d")
    assert {key for ours in encoder.state_dict() for key in coclr_keys(ours)} == set(coclr_s3d(0))
    for key, theirs in KEY_MAP.items():
        assert torchvision_s3d_keys(f"trunk.{key}") == (theirs,)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s3d", "s3dg", "s3d_tiny"])
def test_writing_coclrs_keys_and_reading_them_is_bit_identical(tmp_path: Path, name: str) -> None:
    first = create_model(name)
    torch.save({"state_dict": to_coclr(first.state_dict(), None)}, tmp_path / "a.pth")
    loaded = load_weights(tmp_path / "a.pth")
    export_coclr(tmp_path / "b.pth", loaded)
    again = load_encoder(tmp_path / "b.pth").state_dict()
    assert all(torch.equal(again[key], value) for key, value in first.state_dict().items())


def test_written_keys_are_exactly_coclrs_so_that_their_code_loads_them_strictly() -> None:
    head = MLP(HeadLayout(sizes=(1024, 1024, 128))).state_dict()
    written = {key: list(value.shape) for key, value in to_coclr(create_model("s3d").state_dict(), head).items()}
    theirs = {key: list(value.shape) for key, value in coclr_checkpoint("infonce").items() if "encoder_q" in key}
    assert written == theirs


def test_what_coclrs_layout_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match="only encoders of the s3d family"):
        to_coclr(create_model("r18").state_dict(), None)
    with pytest.raises(ValueError, match="export without the head"):
        to_coclr({}, MLP(HeadLayout(sizes=(8, 8, 8), batch_norm=True)).state_dict())
