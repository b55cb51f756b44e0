"""Image networks of timm: weights from a package or a file, their preprocessing, and what is refused."""

import socket
from itertools import islice
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from safetensors.torch import save_file
from torch import nn

from covid_cmsf.clips.decoders import open_video
from covid_cmsf.evaluation.features.model import create_histogram_model, create_random_encoder, load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.models import image_networks
from covid_cmsf.models.image_networks import PACKAGES, ImageNetwork, load_image_network
from covid_cmsf.models.input_transform import InputTransform

timm = pytest.importorskip("timm", reason="the extra timm is not installed")
LITE0 = "tf_efficientnet_lite0"
TINY = "test_resnet"  # timm's own tiny network for tests


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError("this test has no network")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def tiny_weights(path: Path, *, num_classes: int = 10, seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    network: nn.Module = timm.create_model(TINY, pretrained=False, num_classes=num_classes)
    save_file(network.state_dict(), path)
    return network.eval()


def test_weights_of_a_file_give_the_features_that_timm_gives(tmp_path: Path, no_network: None) -> None:
    network = tiny_weights(tmp_path / "tiny.safetensors")
    loaded = load_image_network(f"timm:{TINY}?weights={tmp_path / 'tiny.safetensors'}")
    images = torch.randn(2, 3, 160, 160)
    with torch.inference_mode():
        expected = network.forward_head(network.forward_features(images), pre_logits=True)  # type: ignore[operator]
        assert torch.allclose(loaded.network(images), expected, atol=1e-5)
        clip = torch.stack([images, images.flip(0)], dim=2)  # (B, 3, 2, H, W)
        assert torch.allclose(loaded.network(clip), expected.mean(0).expand(2, -1), atol=1e-5)
    assert loaded.network.num_features == expected.shape[1]
    assert not loaded.network.train().training  # frozen


def test_its_own_preprocessing_comes_with_it(tmp_path: Path) -> None:
    tiny_weights(tmp_path / "tiny.safetensors")
    model = load_eval_model(f"timm:{TINY}?weights={tmp_path / 'tiny.safetensors'}")
    config = timm.data.resolve_model_data_config(timm.create_model(TINY))
    protocol = build_eval_protocol(model.metadata)
    assert (protocol.modality, protocol.length, protocol.num_windows) == ("frame", 1, 1)
    assert (protocol.mean, protocol.std, protocol.size) == (config["mean"], config["std"], config["input_size"][1])
    assert protocol.crop == protocol.augmentation().center == pytest.approx(config["crop_pct"], abs=0.01)
    assert protocol.resize is not None and protocol.resize.interpolation == config["interpolation"]
    assert type(protocol).model_validate(protocol.model_dump(mode="json")) == protocol
    own = create_random_encoder("s3d_tiny", modality="rgb", seed=0)[1]  # files and fingerprints stay what they are
    assert "resize" not in own.model_dump() and "resize" not in build_eval_protocol(own).model_dump()


BACKBONES = [
    "vit_small_patch14_dinov2",
    "vit_small_patch16_dinov3",
    "vit_base_patch16_clip_224",
    "vit_base_patch16_siglip_224",
]


def timm_pixels(network: nn.Module, frame: NDArray[np.uint8]) -> torch.Tensor:
    """Return a frame (H, W, 3) as timm prepares it for one of its networks: (3, size, size)."""
    config = timm.data.resolve_model_data_config(network)
    pixels: torch.Tensor = timm.data.create_transform(**config, is_training=False)(Image.fromarray(frame))
    return pixels


def max_levels(ours: torch.Tensor, theirs: torch.Tensor, std: tuple[float, ...]) -> float:
    """Return the largest difference of two normalized images, in levels of a byte."""
    return float(((ours - theirs).abs() * 255 * torch.tensor(std).view(3, 1, 1)).max())


def generated_frame(height: int, width: int) -> NDArray[np.uint8]:
    """Return noise that was smoothed a little: every pixel and every shift of the crop counts."""
    noise = np.random.default_rng(height).integers(0, 256, (height // 2, width // 2, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(noise).resize((width, height)))


SQUASHED = "convnext_tiny.fb_in22k_ft_in1k_384"


@pytest.mark.parametrize("name", [LITE0, TINY, SQUASHED, *BACKBONES])
def test_a_prepared_frame_is_that_of_timm(name: str) -> None:
    with torch.device("meta"):
        network = ImageNetwork(timm.create_model(name, pretrained=False, num_classes=0), f"timm:{name}")
    transform = InputTransform.from_metadata(network.metadata)
    for height, width in ((240, 320), (121, 163), (300, 171), (600, 1001)):
        frame = generated_frame(height, width)
        theirs = timm_pixels(network.trunk[0], frame)
        assert max_levels(transform(frame[None].copy()), theirs, network.metadata.std) < 2.5


def test_frames_that_timm_pads_are_refused() -> None:
    network = timm.create_model(TINY)
    network.pretrained_cfg = {**network.pretrained_cfg, "crop_mode": "border"}
    with pytest.raises(ValueError, match="crop_mode 'border'; supported are center and squash"):
        ImageNetwork(network, f"timm:{TINY}")
    network.pretrained_cfg = {**network.pretrained_cfg, "crop_mode": "center", "interpolation": "lanczos"}
    with pytest.raises(ValueError, match="lanczos"):
        ImageNetwork(network, f"timm:{TINY}")


@pytest.mark.real
def test_features_of_real_frames_are_those_of_timms_own_preprocessing(real_videos: Path) -> None:
    pytest.importorskip(PACKAGES[LITE0][0], reason="the package with the weights is not installed")
    network = load_image_network(f"timm:{LITE0}").network
    paths = sorted(real_videos.glob("*/*.avi"))[::19][:6]
    assert len({path.parent for path in paths}) > 3
    for path in paths:
        with av.open(str(path)) as container:
            frame = np.asarray(next(container.decode(video=0)).to_ndarray(format="rgb24"), dtype=np.uint8)
        ours, theirs = network.preprocess(frame[None].copy()), timm_pixels(network.trunk[0], frame)
        assert max_levels(ours, theirs, network.metadata.std) < 2.5
        with torch.inference_mode():
            own, expected = network(torch.stack([ours, theirs]))
        assert torch.cosine_similarity(own, expected, dim=0) > 0.9999  # 0.97 to 0.99 if cropped before the resize


@pytest.mark.real
@pytest.mark.slow
def test_real_actions_are_found_by_it_and_hardly_by_colors(real_videos: Path) -> None:
    """The nearest of 36 clips of six classes, each of another group, so that no sibling can be found."""
    pytest.importorskip(PACKAGES[LITE0][0], reason="the package with the weights is not installed")
    network, colors = load_image_network(f"timm:{LITE0}").network, create_histogram_model("color")
    take_colors = InputTransform.from_metadata(colors.metadata)
    found: dict[str, list[torch.Tensor]] = {"network": [], "colors": []}
    labels = []
    for folder in sorted(real_videos.iterdir()):
        groups = {path.name.split("_")[-2]: path for path in sorted(folder.glob("*.avi"))}
        for path in list(groups.values())[:6]:
            with open_video(path) as video:
                frames = np.stack(list(islice(video.frames(), 17)))
            with torch.inference_mode():
                found["network"].append(network(network.preprocess(frames)[None])[0])
                found["colors"].append(colors.network(take_colors(frames)[None])[0])
            labels.append(folder.name)
    assert len(labels) == 36 and len(set(labels)) == 6
    recall = {}
    for name, features in found.items():
        centered = torch.stack(features) - torch.stack(features).mean(0)
        similarity = torch.nn.functional.normalize(centered, dim=1) @ torch.nn.functional.normalize(centered, dim=1).T
        nearest = similarity.fill_diagonal_(-2).argmax(1).tolist()
        recall[name] = float(np.mean([labels[i] == labels[j] for i, j in enumerate(nearest)]))
    assert recall["network"] > 0.8 and recall["network"] > recall["colors"] + 0.2, recall  # 0.89 and 0.58 were measured


@pytest.mark.parametrize("name", [*BACKBONES, "resnet50_clip", "convnext_tiny", "swin_tiny_patch4_window7_224"])
def test_backbones_of_every_kind_give_one_feature_per_frame(name: str) -> None:
    with torch.device("meta"):  # shapes only
        network = ImageNetwork(timm.create_model(name, pretrained=False, num_classes=0), f"timm:{name}").eval()
        _, height, width = network.metadata.input_size
        features = network(torch.empty(2, 3, 2, height, width))
    assert features.shape == (2, network.num_features) and len(network.metadata.mean) == 3


def test_tensors_of_another_project_are_matched_by_order_and_shape(tmp_path: Path) -> None:
    state = timm.create_model(TINY, num_classes=10).state_dict()
    renamed = {f"net.{i:03d}.{key.split('.')[-1]}": tensor for i, (key, tensor) in enumerate(state.items())}
    torch.save(renamed, tmp_path / "renamed.pth")
    loaded = load_image_network(f"timm:{TINY}?weights={tmp_path / 'renamed.pth'}").network.trunk[0].state_dict()
    assert all(torch.equal(loaded[key], state[key]) for key in loaded)
    renamed.pop("net.004.running_var")
    torch.save(renamed, tmp_path / "less.pth")
    with pytest.raises(ValueError, match=f"does not fit timm:{TINY}: it has no "):
        load_image_network(f"timm:{TINY}?weights={tmp_path / 'less.pth'}")


def test_what_is_missing_is_named_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None
) -> None:
    with pytest.raises(ValueError, match=r"no weights for timm:resnet18: give a file, timm:resnet18\?weights=FILE"):
        load_image_network("timm:resnet18")
    with pytest.raises(ValueError, match="timm has no network 'resnet_18'"):
        load_image_network("timm:resnet_18")
    with pytest.raises(ValueError, match="unknown option 'file'"):
        load_image_network("timm:resnet18?file=a.pth")
    with pytest.raises(FileNotFoundError, match="no run folder or weights file"):
        load_image_network(f"timm:resnet18?weights={tmp_path / 'missing.pth'}")
    with pytest.raises(ValueError, match="has no branches"):
        load_eval_model("timm:resnet18", branch="target")
    monkeypatch.setattr(image_networks, "find_spec", lambda name: None if name == "timm" else object())
    with pytest.raises(ValueError, match=r"needs timm: pip install 'covid-cmsf\[timm\]'"):
        load_image_network("timm:resnet18")


def test_a_failed_download_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("no route to host\nat line 3")

    monkeypatch.setattr(timm, "create_model", fail)
    with pytest.raises(ValueError, match=r"could not download the weights of resnet18 \(no route to host\)$"):
        load_image_network("timm:resnet18?weights=hub")


def test_the_weights_of_the_package_fit_the_statistics_of_their_batch_norms(no_network: None) -> None:
    pytest.importorskip(PACKAGES[LITE0][0], reason="the package with the weights is not installed")
    network = load_image_network(f"timm:{LITE0}").network
    assert network.num_features == 1280 and network.metadata.input_size == (1, 224, 224)
    assert network.metadata.mean == network.metadata.std == (0.5, 0.5, 0.5)
    # A gray image gives an output near the mean that the first batch norm has seen in training; a shifted one does not.
    first, norm = (network.trunk[0].get_submodule(name) for name in ("conv_stem", "bn1"))
    assert isinstance(norm, nn.BatchNorm2d) and norm.running_mean is not None and norm.running_var is not None
    with torch.inference_mode():
        gray, bright = (first(torch.full((1, 3, 64, 64), value)).mean((0, 2, 3)) for value in (-0.1, 1.0))
    spread = norm.running_var.sqrt()
    assert ((gray - norm.running_mean) / spread).abs().median() < ((bright - norm.running_mean) / spread).abs().median()
    assert torch.isfinite(network(torch.zeros(1, 3, 224, 224))).all()
