"""A flipped bit in one of our weights files is found whenever the file is read, wherever the file is."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from covid_cmsf.cli.app import app
from covid_cmsf.evaluation.features.model import load_eval_model
from covid_cmsf.models import Encoder, EncoderMetadata, create_model, load_encoder, load_guide, save_encoder
from covid_cmsf.models.checkpoints.torch_file import damaged_record, write_torch_file

KEY = "trunk.layer4.0.bn2.running_mean"


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    encoder = create_model("r10_small")
    encoder.state_dict()[KEY].normal_()
    return encoder


def metadata(in_channels: int = 3) -> EncoderMetadata:
    values: dict[str, Any] = {"encoder": "r10_small", "input_size": (1, 32, 32), "bn_eps": 1e-5}
    return EncoderMetadata(
        in_channels=in_channels, mean=(0.5,) * in_channels, std=(0.5,) * in_channels, modality="frame", **values
    )


def write_checkpoint(path: Path, encoder: Encoder) -> None:
    state = {f"online.encoder.{key}": value for key, value in encoder.state_dict().items()}
    write_torch_file(path, {"format": 2, "encoder": metadata().model_dump(mode="json"), "state": state})


def write_exchange(path: Path, encoder: Encoder) -> None:
    save_encoder(path, encoder, metadata())


def flip_a_weight(path: Path, encoder: Encoder) -> None:
    """Flip one bit of one weight; the file still has its size and its structure."""
    data = bytearray(path.read_bytes())
    position = data.index(encoder.state_dict()[KEY].contiguous().numpy().tobytes()[:64])
    data[position + 2] ^= 1 << 6
    path.write_bytes(data)


def convert(path: Path) -> None:
    out = path.with_name("out.safetensors")
    result = CliRunner().invoke(
        app, ["weights", "import", str(path), "-o", str(out), "--force"], catch_exceptions=False
    )
    assert result.exit_code == 0


READERS: dict[str, Callable[[Path], object]] = {
    "load_encoder": load_encoder,
    "guide": lambda path: load_guide(path, layer="encoder"),
    "evaluation": load_eval_model,
    "weights import": convert,
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@pytest.mark.parametrize("write", [write_checkpoint, write_exchange])
def test_a_flipped_bit_is_found_by_every_reader(
    write: Callable[[Path, Encoder], None], read: Callable[[Path], object], encoder: Encoder, tmp_path: Path
) -> None:
    path = tmp_path / "moved from its run"
    write(path, encoder)
    read(path)
    flip_a_weight(path, encoder)
    with pytest.raises(ValueError, match=r"moved from its run is a .*damaged .* \(.*\): copy or download it again"):
        read(path)


def test_another_projects_file_with_wrong_checksums_is_read_with_a_warning(
    encoder: Encoder, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "resnet.pth"
    state = {key.removeprefix("trunk."): value for key, value in encoder.state_dict().items()}
    torch.save(state, path)
    assert damaged_record(path) is None
    flip_a_weight(path, encoder)  # torch.serialization.set_crc32_options(False) writes such files, too
    with caplog.at_level(logging.WARNING):
        load_encoder(path)
    assert "resnet.pth: resnet/data/" in caplog.text and "differs from its checksum" in caplog.text


def test_a_tensor_that_claims_more_than_is_stored_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    path = tmp_path / "small.pth"
    state = {key.removeprefix("trunk."): value for key, value in encoder.state_dict().items()}
    state["conv1.weight"] = torch.zeros(16, 1, 3, 3).expand(16, 60_000_000, 3, 3)  # 31 GB as soon as it is copied
    torch.save(state, path)
    assert path.stat().st_size < 10_000_000
    with pytest.raises(ValueError, match=r"small.pth: conv1.weight has shape .* only 144 of its"):
        load_encoder(path)


def test_metadata_that_claims_more_channels_than_the_weights_is_refused(encoder: Encoder, tmp_path: Path) -> None:
    state = {f"online.encoder.{key}": value for key, value in encoder.state_dict().items()}
    claimed = metadata(200_000).model_dump(mode="json")
    write_torch_file(tmp_path / "x.pt", {"format": 2, "encoder": claimed, "state": state})
    with pytest.raises(ValueError, match=r"x.pt: its metadata has 200000 input channels, its weights 3"):
        load_encoder(tmp_path / "x.pt")
