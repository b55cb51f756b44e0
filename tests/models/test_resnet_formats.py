"""ResNets of torchvision, MSF, CMSF, MoCo v2 and BYOL-like programs."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import resnet18, resnet101
from torchvision.models.video import s3d as torchvision_s3d

from covid_cmsf.models import load_encoder, load_weights

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop


def cmsf_head(d: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d, 2 * d), nn.BatchNorm1d(2 * d), nn.ReLU(), nn.Linear(2 * d, d // 4))


def moco_head(d: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(d, d), nn.ReLU(), nn.Linear(d, 128))


def network(head: nn.Module) -> dict[str, Tensor]:
    net = resnet18()
    net.fc = head
    state: dict[str, Tensor] = net.state_dict()
    return state


def prefixed(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + key: value for key, value in state.items()}


def cmsf_state() -> dict[str, Tensor]:
    """The official layout: DataParallel around each sub-network."""
    predictor = prefixed("predict_q.module.", cmsf_head(16).state_dict())
    return {
        **prefixed("encoder_q.module.", network(cmsf_head(512))),
        **prefixed("encoder_t.module.", network(cmsf_head(512))),
        **predictor,
        "queue": torch.randn(8, 128),
        "labels": torch.zeros(8),
        "queue_ptr": torch.zeros(1),
    }


STATES: dict[str, tuple[str, Callable[[], dict[str, Tensor]], tuple[int, ...]]] = {
    "torchvision": ("", lambda: resnet18().state_dict(), (512, 1000)),
    "cmsf": ("encoder_q.module.", cmsf_state, (512, 1024, 128)),
    "moco v2": ("module.encoder_q.", lambda: prefixed("module.encoder_q.", network(moco_head(512))), (512, 512, 128)),
    "byol": ("online_encoder.", lambda: prefixed("online_encoder.", network(cmsf_head(512))), (512, 1024, 128)),
}


@pytest.mark.parametrize("origin", STATES)
@pytest.mark.parametrize("keep_head", [False, True])
def test_numbers_arrive_and_the_head_is_kept_or_listed(tmp_path: Path, origin: str, keep_head: bool) -> None:
    prefix, make, sizes = STATES[origin]
    state = make()
    torch.save({"epoch": 3, "state_dict": state}, tmp_path / "x.pth")
    loaded = load_weights(tmp_path / "x.pth", keep_head=keep_head)
    assert loaded.encoder.name == "r18" and not loaded.encoder.training
    for key, value in loaded.encoder.state_dict().items():
        assert torch.equal(value, state[prefix + key.removeprefix("trunk.")])
    if keep_head:
        assert loaded.projector is not None and loaded.projector.layout.sizes == sizes
        last = "fc.weight" if origin == "torchvision" else f"fc.{list(loaded.projector.state_dict())[-2]}"
        assert torch.equal(list(loaded.projector.parameters())[-2], state[prefix + last])
    else:
        heads = {key.replace("module.", "") for key in state if ".fc." in key or key.startswith("fc.")}
        assert heads <= set(loaded.report.unused_keys)


def test_features_are_those_of_torchvision(tmp_path: Path) -> None:
    net = resnet18().eval()
    torch.save(net.state_dict(), tmp_path / "r.pth")
    net.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(load_encoder(tmp_path / "r.pth")(images), net(images), atol=1e-5, rtol=1e-4)


def test_official_checkpoints_with_their_command_line_inside_are_read(tmp_path: Path) -> None:
    contents = {"opt": argparse.Namespace(arch="resnet18"), "state_dict": cmsf_state(), "optimizer": {}, "epoch": 200}
    torch.save(contents, tmp_path / "ckpt_epoch_200.pth")
    loaded = load_weights(tmp_path / "ckpt_epoch_200.pth", branch="target")
    assert loaded.report.branch == "target (encoder_t)" and "opt" in loaded.report.unused_keys


def test_a_deeper_network_is_not_cut_to_a_shallow_one(tmp_path: Path) -> None:
    with torch.device("meta"):
        shapes = {key: value.shape for key, value in resnet101().state_dict().items()}
    torch.save({key: torch.ones(shape) for key, shape in shapes.items()}, tmp_path / "r101.pth")
    with pytest.raises(ValueError, match=r"encoder tensors that no registered encoder has: layer3.6"):
        load_encoder(tmp_path / "r101.pth")


def test_torchvisions_kinetics_s3d_brings_its_eps_and_normalization(tmp_path: Path) -> None:
    net = torchvision_s3d().eval()
    torch.save(net.state_dict(), tmp_path / "s3d.pth")
    loaded = load_weights(tmp_path / "s3d.pth")
    assert loaded.metadata.bn_eps == 1e-3 and loaded.metadata.mean == (0.43216, 0.394666, 0.37645)
    assert set(loaded.report.unused_keys) == {"classifier.1.weight", "classifier.1.bias"}
    clip = torch.randn(1, 3, 8, 32, 32)
    with torch.inference_mode():
        torch.testing.assert_close(loaded.encoder.forward_features(clip), net.features(clip), atol=1e-5, rtol=1e-4)


def test_half_precision_files_are_read_as_fp32_and_the_report_says_so(tmp_path: Path) -> None:
    torch.save({key: value.half() for key, value in resnet18().state_dict().items()}, tmp_path / "h.pth")
    loaded = load_weights(tmp_path / "h.pth")
    assert loaded.report.changes == ("stored as torch.float16, read as torch.float32",)
    assert loaded.encoder.state_dict()["trunk.conv1.weight"].dtype == torch.float32


def test_a_head_that_is_no_plain_mlp_is_refused_when_asked_for(tmp_path: Path) -> None:
    head = nn.Sequential(nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 128))
    torch.save(prefixed("encoder_q.", network(head)), tmp_path / "x.pth")
    with pytest.raises(ValueError, match="not a plain MLP of linear layers with bias"):
        load_weights(tmp_path / "x.pth", keep_head=True)
    assert load_weights(tmp_path / "x.pth").projector is None


def test_foreign_files_with_other_channels_say_that_the_pixels_are_not_known(tmp_path: Path) -> None:
    state = resnet18().state_dict()
    state["conv1.weight"] = torch.randn(64, 2, 7, 7)
    torch.save(state, tmp_path / "flow.pth")
    loaded = load_weights(tmp_path / "flow.pth")
    assert loaded.metadata.mean == (0.0, 0.0) and loaded.metadata.std == (1.0, 1.0)
    assert loaded.report.changes == ("unknown normalization of 2 channels: mean 0, std 1 assumed",)
