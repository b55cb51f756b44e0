"""Wrong, truncated, pickled-code and mismatching files: each has its own clear error, none gives random weights."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from covid_cmsf.models import EncoderMetadata, create_model, load_encoder, load_weights, save_encoder
from covid_cmsf.models.checkpoints.formats.coclr import to_coclr

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

TINY = create_model("s3d_tiny").state_dict()


def tiny_state() -> dict[str, Tensor]:
    return to_coclr(TINY, None)


def metadata(**changes: object) -> EncoderMetadata:
    values = {"encoder": "s3d_tiny", "in_channels": 3, "input_size": (8, 64, 64), "bn_eps": 1e-5}
    return EncoderMetadata.model_validate({**values, "mean": (0.5,) * 3, "std": (0.5,) * 3, **changes})


class Attack:
    """Runs a command when it is unpickled by a careless reader."""

    def __init__(self, flag: Path) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.flag}",)


def test_missing_file_and_directory(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no run folder or weights file .*nothing.pth"):
        load_encoder(tmp_path / "nothing.pth")
    with pytest.raises(
        FileNotFoundError, match="neither a weights file nor a run folder: it has no checkpoints/last.pt"
    ):
        load_encoder(tmp_path)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"hello, these are letters", r"is not a weights file: it starts with b'hello"),
        (b"<!DOCTYPE html><html>404</html>", "looks like a web page, so the download failed"),
        (b"\x80\x02}q", "truncated or damaged torch file|not a torch file"),
        (b"PK\x03\x04 and then nothing", "truncated or damaged torch file"),
        (b"\x10\x00\x00\x00\x00\x00\x00\x00{", "truncated or damaged safetensors file"),
    ],
)
def test_files_that_are_no_weights_are_refused(tmp_path: Path, contents: bytes, message: str) -> None:
    (tmp_path / "x.pth").write_bytes(contents)
    with pytest.raises(ValueError, match=message):
        load_encoder(tmp_path / "x.pth")


@pytest.mark.parametrize("kind", ["zip", "old torch", "safetensors"])
@pytest.mark.parametrize("kept", [0.1, 0.5, 0.99])
def test_truncated_files_are_refused(tmp_path: Path, kind: str, kept: float) -> None:
    path = tmp_path / "x.weights"
    if kind == "safetensors":
        save_encoder(path, create_model("s3d_tiny"), metadata())
    else:
        torch.save(tiny_state(), path, _use_new_zipfile_serialization=kind == "zip")
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    with pytest.raises(ValueError, match=r"truncated or damaged (torch|safetensors) file .* copy or download it again"):
        load_encoder(path)


@pytest.mark.parametrize("zipped", [True, False])
def test_pickled_code_is_refused_by_name_and_never_runs(tmp_path: Path, zipped: bool) -> None:
    flag = tmp_path / "it_ran"
    contents = {"state_dict": tiny_state(), "extra": Attack(flag)}
    torch.save(contents, tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ValueError, match=r"would execute '(posix|nt|os)\.system' .* refused: weights need no code"):
        load_encoder(tmp_path / "x.pth")
    assert not flag.exists()


def test_numpy_scalars_of_old_files_are_refused_with_advice(tmp_path: Path) -> None:
    torch.save({"state_dict": tiny_state(), "best_acc": np.float64(0.5)}, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"numpy.*scalar.*save only its tensors again"):
        load_encoder(tmp_path / "x.pth")


def test_torchscript_programs_are_refused(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), tmp_path / "x.pt")
    with pytest.raises(ValueError, match="TorchScript program, not weights"):
        load_encoder(tmp_path / "x.pt")


def test_contents_that_are_no_state_dict(tmp_path: Path) -> None:
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="contains a list, not a state dict"):
        load_encoder(tmp_path / "list.pth")
    torch.save({"epoch": 3, "loss": 0.5}, tmp_path / "numbers.pth")
    with pytest.raises(ValueError, match=r"no state dict; its entries: epoch \(int\), loss \(float\)"):
        load_encoder(tmp_path / "numbers.pth")


def test_unknown_layout_names_some_keys_and_the_known_layouts(tmp_path: Path) -> None:
    torch.save({f"blocks.{i}.attn.weight": torch.ones(2) for i in range(30)}, tmp_path / "vit.pth")
    with pytest.raises(ValueError, match=r"unknown layout \(30 tensors: blocks.0.attn.weight.*known layouts: CoCLR"):
        load_encoder(tmp_path / "vit.pth")


def test_missing_keys_are_named_as_the_file_would_call_them(tmp_path: Path) -> None:
    gone = ("Conv_2b.bn.bias", "block2.1.bn.bias")
    state = {key: value for key, value in tiny_state().items() if not key.endswith(gone)}
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(ValueError, match=r"closest is s3d_tiny: 1 missing: encoder_q.0.Conv_2b.bn.bias"):
        load_encoder(tmp_path / "x.pth")


def test_wrong_shapes_are_named_with_both_shapes(tmp_path: Path) -> None:
    state = tiny_state()
    for key in ("encoder_q.0.Conv_2b.conv.weight", "encoder_q.0.block2.1.conv.weight"):
        state[key] = torch.ones(16, 17, 1, 1, 1)
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(
        ValueError, match=r"Conv_2b.conv.weight has shape \(16, 17, 1, 1, 1\), expected \(16, 16, 1, 1, 1\)"
    ):
        load_encoder(tmp_path / "x.pth")


def test_another_encoder_than_the_wanted_one_is_an_error(tmp_path: Path) -> None:
    torch.save(tiny_state(), tmp_path / "x.pth")
    with pytest.raises(ValueError, match="does not fit s3d: .* of wrong shape"):
        load_encoder(tmp_path / "x.pth", encoder="s3d")
    with pytest.raises(ValueError, match="unknown encoder 's4d'; choose from"):
        load_encoder(tmp_path / "x.pth", encoder="s4d")
    save_encoder(tmp_path / "x.safetensors", create_model("s3d_tiny"), metadata())
    with pytest.raises(ValueError, match="has an encoder s3d_tiny, not s3d"):
        load_encoder(tmp_path / "x.safetensors", encoder="s3d")


@pytest.mark.slow
def test_gated_weights_do_not_slip_into_an_ungated_network(tmp_path: Path) -> None:
    torch.save(to_coclr(create_model("s3dg").state_dict(), None), tmp_path / "g.pth")
    assert load_encoder(tmp_path / "g.pth").name == "s3dg"
    with pytest.raises(ValueError, match="does not fit s3d: 72 unexpected"):
        load_encoder(tmp_path / "g.pth", encoder="s3d")


def test_diverged_weights_are_refused(tmp_path: Path) -> None:
    encoder = create_model("s3d_tiny")
    encoder.state_dict()["trunk.Conv_2b.bn.bias"].fill_(float("nan"))
    save_encoder(tmp_path / "x.safetensors", encoder, metadata())
    with pytest.raises(ValueError, match=r"Conv_2b.bn.bias has values that are not finite"):
        load_encoder(tmp_path / "x.safetensors")


def test_a_file_without_a_head_cannot_give_one(tmp_path: Path) -> None:
    torch.save(tiny_state(), tmp_path / "x.pth")
    with pytest.raises(ValueError, match="no projection head"):
        load_weights(tmp_path / "x.pth", keep_head=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "not JSON"), ("[1]", "must be a mapping"), ('{"format": 9}', "has format 9; this version reads"),
     ('{"encoder": "s3d_tiny"}', "'in_channels' is missing")],
)  # fmt: skip
def test_bad_metadata_in_our_files_is_refused(tmp_path: Path, text: str, message: str) -> None:
    state = {f"encoder.{key}": value.contiguous() for key, value in TINY.items()}
    save_file(state, tmp_path / "x.safetensors", metadata={"covid_cmsf": text})
    with pytest.raises(ValueError, match=message):
        load_encoder(tmp_path / "x.safetensors")


def test_a_safetensors_header_whose_length_looks_like_a_pickle_is_no_pickle(tmp_path: Path) -> None:
    path, encoder = tmp_path / "x.weights", create_model("s3d_tiny")
    for n in range(0, 300, 8):
        save_encoder(path, encoder, metadata(trained="x" * n))
        if path.read_bytes()[:1] == b"\x80":
            break
    assert path.read_bytes()[:1] == b"\x80"
    assert load_weights(path).metadata.trained == "x" * n


def test_a_card_must_have_one_mean_and_std_a_channel() -> None:
    with pytest.raises(ValueError, match="one value for each of 2 channels"):
        metadata(in_channels=2)
    with pytest.raises(ValueError, match="must be above 0"):
        metadata(std=(1.0, 0.0, 1.0))
