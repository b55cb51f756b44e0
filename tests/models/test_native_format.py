"""Our exchange format and the contract of training checkpoints, over the whole zoo; channel adaptation; export."""

import json
from pathlib import Path

import onnxruntime
import pytest
import torch

from covid_cmsf.models import (
    MLP,
    Encoder,
    EncoderMetadata,
    Network,
    create_model,
    list_models,
    load_encoder,
    load_guide,
    load_weights,
    projector_layout,
    save_encoder,
)
from covid_cmsf.models.checkpoints import export
from covid_cmsf.models.checkpoints.channel_adapt import adapt_channel_values, adapt_channels
from tests.factories import file_size_limit

NAMES = list_models()


def random_encoder(name: str, in_channels: int = 3, bn_eps: float = 1e-5) -> Encoder:
    """An encoder whose batch norms have moved, too."""
    encoder = create_model(name, in_channels=in_channels, bn_eps=bn_eps)
    for key, value in encoder.state_dict().items():
        if "running" in key or "bn" in key:
            value.copy_(torch.rand(value.shape) + 0.5)
    return encoder.eval()


def make_metadata(encoder: Encoder, size: tuple[int, int, int] = (8, 32, 32), bn_eps: float = 1e-5) -> EncoderMetadata:
    n = encoder.in_channels
    return EncoderMetadata(
        encoder=encoder.name, in_channels=n, input_size=size, mean=(0.5,) * n, std=(0.25,) * n, bn_eps=bn_eps,
        modality="flow", trained="not at all",
    )  # fmt: skip


def assert_same(a: torch.nn.Module, b: torch.nn.Module) -> None:
    first, second = a.state_dict(), b.state_dict()
    assert first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_round_trip_is_bit_identical(tmp_path: Path, name: str) -> None:
    encoder = random_encoder(name, in_channels=2, bn_eps=1e-3)
    save_encoder(tmp_path / "x.safetensors", encoder, make_metadata(encoder, bn_eps=1e-3))
    loaded = load_weights(tmp_path / "x.safetensors")
    assert_same(encoder, loaded.encoder)
    assert loaded.metadata == make_metadata(encoder, bn_eps=1e-3) and not loaded.report.unused_keys
    save_encoder(tmp_path / "y.safetensors", loaded.encoder, loaded.metadata)
    assert (tmp_path / "x.safetensors").read_bytes() == (tmp_path / "y.safetensors").read_bytes()
    clip = torch.randn(1, 2, 8, 32, 32)
    with torch.inference_mode():
        assert torch.equal(encoder(clip), loaded.encoder(clip))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("branch", ["online", "target"])
def test_training_checkpoints_give_either_network(tmp_path: Path, name: str, branch: str) -> None:
    networks = {"online": random_encoder(name), "target": random_encoder(name)}
    state = {f"{p}.encoder.{key}": value for p, net in networks.items() for key, value in net.state_dict().items()}
    metadata = make_metadata(networks["online"]).model_dump()
    contents = {"format": 1, "encoder": metadata, "state": {**state, "bank.rows": torch.ones(4, 2)}, "step": 7}
    torch.save(contents, tmp_path / "last.pt")
    loaded = load_weights(tmp_path / "last.pt", branch=branch)
    assert_same(networks[branch], loaded.encoder)
    assert {"bank.rows", "step", "format", "encoder"} <= set(loaded.report.unused_keys)


def test_the_projector_travels_with_the_encoder(tmp_path: Path) -> None:
    encoder = random_encoder("s3d_tiny")
    projector = MLP(projector_layout(256, output_batch_norm=True)).eval()
    metadata = make_metadata(encoder).model_copy(update={"projector": projector.layout})
    save_encoder(tmp_path / "x.safetensors", encoder, metadata, projector=projector)
    network = load_guide(tmp_path / "x.safetensors").network
    assert isinstance(network, Network)
    assert_same(network.projector, projector)
    assert network.projector.layout == projector.layout and not network.training


def test_a_newer_checkpoint_format_is_refused(tmp_path: Path) -> None:
    encoder = random_encoder("s3d_tiny")
    state = {f"online.encoder.{key}": value for key, value in encoder.state_dict().items()}
    torch.save({"format": 3, "encoder": make_metadata(encoder).model_dump(), "state": state}, tmp_path / "x.pt")
    with pytest.raises(ValueError, match="has format 3; this version reads formats 1 and 2"):
        load_encoder(tmp_path / "x.pt")


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    encoder = random_encoder("s3d_tiny")
    save_encoder(tmp_path / "x.safetensors", encoder, make_metadata(encoder))
    before = (tmp_path / "x.safetensors").read_bytes()
    with file_size_limit(10_000), pytest.raises(OSError, match=r"File too large: .*x\.safetensors"):
        save_encoder(tmp_path / "x.safetensors", random_encoder("s3d_tiny"), make_metadata(encoder))
    assert (tmp_path / "x.safetensors").read_bytes() == before and len(list(tmp_path.iterdir())) == 1


def test_mean_adaptation_keeps_the_response_to_equal_channels() -> None:
    weight = torch.randn(4, 3, 1, 5, 5, dtype=torch.float64)
    value = torch.randn(1, 1, 2, 8, 8, dtype=torch.float64)
    for new in (1, 2, 5):
        adapted = adapt_channels(weight, new, "mean")
        before = torch.nn.functional.conv3d(value.expand(1, 3, 2, 8, 8), weight)
        torch.testing.assert_close(torch.nn.functional.conv3d(value.expand(1, new, 2, 8, 8), adapted), before)
        slow = [[(weight[o, 0] + weight[o, 1] + weight[o, 2]) / new for _ in range(new)] for o in range(4)]
        torch.testing.assert_close(adapted, torch.stack([torch.stack(row) for row in slow]))


def test_picking_channels_and_back_is_exact_for_coclrs_flow() -> None:
    weight = torch.randn(4, 3, 1, 5, 5)
    x_and_y = adapt_channels(weight, 2, "2,1")
    assert torch.equal(x_and_y[:, 0], weight[:, 2]) and torch.equal(x_and_y[:, 1], weight[:, 1])
    back = adapt_channels(x_and_y, 3, "zero,1,0")
    assert torch.equal(back[:, 1:], weight[:, 1:]) and not back[:, 0].any()
    assert adapt_channel_values((1.0, 2.0, 3.0), 2, "2,1", empty=0.0) == (3.0, 2.0)
    assert adapt_channel_values((1.0, 2.0), 3, "zero,1,0", empty=9.0) == (9.0, 2.0, 1.0)
    assert adapt_channel_values((1.0, 2.0, 3.0), 2, "mean", empty=0.0) == (2.0, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_channels_are_adapted_only_on_request_and_it_is_reported(tmp_path: Path, name: str) -> None:
    encoder = random_encoder(name)
    save_encoder(tmp_path / "x.safetensors", encoder, make_metadata(encoder))
    with pytest.raises(ValueError, match="has 3 input channels, but 2 were requested"):
        load_encoder(tmp_path / "x.safetensors", in_channels=2)
    with pytest.raises(ValueError, match="needs the number of input channels"):
        load_encoder(tmp_path / "x.safetensors", adapt="mean")
    loaded = load_weights(tmp_path / "x.safetensors", in_channels=2, adapt="mean")
    assert loaded.encoder(torch.randn(1, 2, 8, 32, 32)).shape == (1, encoder.num_features)
    assert loaded.report.changes[0].endswith("3 -> 2 channels (mean)") and loaded.metadata.mean == (0.5, 0.5)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("3,1", "'3' is not one of the file's channels 0 to 2"),
        ("2", "selects 1 channels, but 2 are needed"),
        ("x,y", "'x' is not"),
    ],
)
def test_an_impossible_adaptation_says_what_would_be_accepted(how: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        adapt_channels(torch.ones(1, 3, 1, 1, 1), 2, how)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s3d_tiny", "r18_cifar"])
def test_onnx_gives_our_features_for_any_batch(tmp_path: Path, name: str) -> None:
    encoder = random_encoder(name)
    assert export.export_onnx(tmp_path / "x.onnx", encoder, make_metadata(encoder)) < export.TOLERANCE
    session = onnxruntime.InferenceSession(str(tmp_path / "x.onnx"))
    clip = torch.randn(3, 3, 8, 32, 32)
    (feature,) = session.run(["feature"], {"clip": clip.numpy()})
    with torch.inference_mode():
        torch.testing.assert_close(torch.from_numpy(feature), encoder(clip), atol=1e-4, rtol=1e-3)
    header = session.get_modelmeta().custom_metadata_map
    assert EncoderMetadata.model_validate(json.loads(header["covid_cmsf"])) == make_metadata(encoder)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s3d_tiny", "r18_cifar"])
def test_torch_export_gives_our_features_without_our_code(tmp_path: Path, name: str) -> None:
    encoder = random_encoder(name)
    assert export.export_program(tmp_path / "x.pt2", encoder, make_metadata(encoder)) < export.TOLERANCE
    program = torch.export.load(tmp_path / "x.pt2").module()
    clip = torch.randn(3, 3, 8, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(program(clip), encoder(clip), atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_an_export_that_differs_fails_and_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = random_encoder("r18_cifar")
    monkeypatch.setattr(export, "_run_onnx", lambda path, clip: encoder(clip).detach() * 1.01)
    with pytest.raises(RuntimeError, match="differs from the original by 0.01 of the largest value"):
        export.export_onnx(tmp_path / "x.onnx", encoder, make_metadata(encoder))
    assert not list(tmp_path.iterdir())


def test_a_missing_export_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "ONNX_MODULES", ("onnx", "no_such_library"))
    encoder = random_encoder("s3d_tiny")
    with pytest.raises(ValueError, match=r"needs no_such_library: pip install 'covid-cmsf\[export\]'"):
        export.export_onnx(tmp_path / "x.onnx", encoder, make_metadata(encoder))
