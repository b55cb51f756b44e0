"""Video networks of torchvision: weights of a file, random ones, their preprocessing, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torchvision.models import get_model, get_model_weights

from covid_cmsf.evaluation.features.model import load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.models.named_networks import load_named_network
from covid_cmsf.models.transformers_networks import transformers_weights_file
from covid_cmsf.models.video_networks import NETWORKS, VideoNetwork, load_video_network
from covid_cmsf.search.encoders import encoder_from_json, open_encoder
from tests.models.test_image_networks import generated_frame, max_levels
from tests.models.test_invalid_files import Attack

assert NETWORKS


@pytest.mark.slow
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_gives_features_of_the_size_that_it_says(name: str) -> None:
    with torch.device("meta"):  # shapes only
        network = VideoNetwork(get_model(name, weights=None), name, trained="not at all").eval()
        features = network(torch.empty(2, 3, *network.metadata.input_size))
    assert features.shape == (2, network.num_features) and network.num_features >= 512


@pytest.mark.parametrize("name", NETWORKS)
def test_its_own_preprocessing_is_that_of_torchvision(name: str) -> None:
    transforms = next(iter(get_model_weights(name))).transforms()
    taken = NETWORKS[name]
    assert (list(taken.mean), list(taken.std)) == (transforms.mean, transforms.std)
    assert [taken.size] * 2 == transforms.crop_size
    assert taken.size / min(transforms.resize_size) == 0.875
    with torch.device("meta"):
        network = VideoNetwork(get_model(name, weights=None), name, trained="not at all")
    transform = replace(InputTransform.from_metadata(network.metadata), length=2, stride=1)
    for height, width in ((240, 320), (121, 163), (300, 171)):
        frames = torch.as_tensor(generated_frame(height, width).copy()).permute(2, 0, 1).expand(2, -1, -1, -1)
        theirs = transforms(frames).transpose(0, 1)  # (T, C, H, W)
        assert max_levels(transform(frames).transpose(0, 1), theirs, taken.std) < 1.5


@pytest.mark.slow
def test_weights_of_a_file_give_the_features_that_torchvision_gives(tmp_path: Path) -> None:
    torch.manual_seed(1)
    theirs = get_model("r3d_18", weights=None).eval()
    torch.save(theirs.state_dict(), tmp_path / "r3d.pth")
    loaded = load_named_network(f"torchvision:r3d_18?weights={tmp_path / 'r3d.pth'}")
    clip = torch.randn(1, 3, 2, 32, 32)
    theirs.fc = torch.nn.Identity()
    with torch.inference_mode():
        assert torch.allclose(loaded.network(clip), theirs(clip), atol=1e-4)
    assert loaded.path == tmp_path / "r3d.pth" and not loaded.network.train().training  # frozen
    entry = open_encoder(f"torchvision:r3d_18?weights={tmp_path / 'r3d.pth'}")
    again = encoder_from_json(tmp_path, "video", entry.to_json(tmp_path))
    assert entry.name == again.name == "video" and again.eval_protocol == entry.eval_protocol
    assert weights_sha256(again.model.network) == weights_sha256(loaded.network)
    with pytest.raises(ValueError, match=r"layer2.0.conv1.0.weight has shape .* torchvision:mc3_18 needs"):
        load_video_network(f"torchvision:mc3_18?weights={tmp_path / 'r3d.pth'}")


@pytest.mark.slow
def test_random_weights_are_always_the_same_and_are_calibrated() -> None:
    model = load_eval_model("torchvision:r3d_18?weights=random")
    again = load_video_network("torchvision:r3d_18?weights=random")
    assert weights_sha256(model.network) == weights_sha256(again.network)
    assert model.needs_calibration and "random" in model.metadata.trained
    protocol = build_eval_protocol(model.metadata)
    assert (protocol.modality, protocol.length, protocol.stride, protocol.size) == ("rgb", 16, 2, 112)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no weights for torchvision:s3d: give a file, torchvision:s3d\?weights=FILE"):
        load_video_network("torchvision:s3d")
    with pytest.raises(ValueError, match="torchvision has no video network 'r4d'; choose from r3d_18"):
        load_video_network("torchvision:r4d?weights=random")
    with pytest.raises(FileNotFoundError, match="no run folder or weights file"):
        load_video_network(f"torchvision:s3d?weights={tmp_path / 'missing.pth'}")
    with torch.device("meta"):
        network = VideoNetwork(get_model("mvit_v2_s", weights=None), "mvit_v2_s", trained="not at all")
    with pytest.raises(ValueError, match=r"takes clips of \(16, 224, 224\) only, not \(32, 224, 224\)"):
        network(torch.empty(1, 3, 32, 224, 224, device="meta"))


def test_transformers_that_is_not_installed_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("covid_cmsf.models.transformers_networks.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"needs transformers: pip install 'covid-cmsf\[transformers\]'"):
        load_named_network(f"transformers:{tmp_path}")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        transformers_weights_file(f"transformers:{tmp_path / 'nothing'}")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which torch.hub keeps downloads; no download can succeed."""

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError("no route to host")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.urlopen", refuse)
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    return tmp_path / "hub" / "checkpoints"


def test_a_download_that_fails_is_one_line(hub: Path) -> None:
    with pytest.raises(ValueError, match=r"could not download the weights of r3d_18 \(.*no route to host.*\)$"):
        load_video_network("torchvision:r3d_18?weights=hub")


def test_downloaded_weights_have_the_hash_of_their_name(hub: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = hub / "r3d_18-b3b3357e.pth"
    torch.save(get_model("r3d_18", weights=None).state_dict(), path)
    with pytest.raises(ValueError, match=r"r3d_18-b3b3357e.pth is damaged: its SHA-256 does not begin with b3b3357e"):
        load_video_network("torchvision:r3d_18?weights=hub")
    monkeypatch.setattr("covid_cmsf.models.video_networks.file_sha256", lambda path: "b3b3357e" + "0" * 56)
    loaded = load_video_network("torchvision:r3d_18?weights=hub")
    assert loaded.path is None and "Kinetics-400" in loaded.network.metadata.trained


def test_code_in_downloaded_weights_never_runs(hub: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"state_dict": Attack(tmp_path / "it_ran")}, hub / "r3d_18-b3b3357e.pth")
    monkeypatch.setattr("covid_cmsf.models.video_networks.file_sha256", lambda path: "b3b3357e", raising=False)
    with pytest.raises(ValueError, match=r"would execute '(posix|nt|os)\.system' .* refused"):
        load_video_network("torchvision:r3d_18?weights=hub")
    assert not (tmp_path / "it_ran").exists()
