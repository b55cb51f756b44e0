"""Networks of other libraries as encoders: feature maps, files of this package, what is refused."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torchvision.models import get_model
from torchvision.models.video.mvit import MSBlockConfig, MViT

import covid_cmsf as cc
from covid_cmsf.evaluation.features.model import load_eval_model
from covid_cmsf.evaluation.features.protocol import build_eval_protocol
from covid_cmsf.evaluation.finetune.config import finetune_config
from covid_cmsf.evaluation.finetune.run import run_finetune
from covid_cmsf.models import load_weights, save_encoder
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.models.heads import head_layout
from covid_cmsf.models.image_networks import ImageNetwork, create_image_network
from covid_cmsf.models.named_networks import load_named_network, rebuild_named_network
from covid_cmsf.models.video_networks import NETWORKS, VideoNetwork, create_video_network
from covid_cmsf.training.build import init_network
from covid_cmsf.views.modalities import get_modality
from tests.evaluation.factories import SyntheticClips
from tests.models.test_image_networks import TINY, tiny_weights
from tests.models.transformers_factories import SIZE, save_tiny

timm = pytest.importorskip("timm", reason="the extra timm is not installed")


@pytest.fixture(params=["timm", "transformers"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A tiny network of each library that has one."""
    if request.param == "timm":
        tiny_weights(tmp_path / "tiny.safetensors")
        return f"timm:{TINY}?weights={tmp_path / 'tiny.safetensors'}"
    save_tiny(tmp_path / "tiny", "VJEPA2ForVideoClassification")
    return f"transformers:{tmp_path / 'tiny'}"


def clip_for(network: nn.Module) -> Tensor:
    """Two clips that the network takes."""
    return torch.randn(2, 3, *network.metadata.input_size, generator=torch.Generator().manual_seed(0))  # type: ignore[union-attr,misc]


# Feature maps


@pytest.mark.parametrize("name", ["test_resnet", "test_vit", "test_mambaout", "mobilenetv3_small_050"])
def test_maps_of_timm_are_what_its_head_pools(name: str) -> None:
    network = create_image_network(name).eval()
    library: Any = network.trunk[0]
    clip = torch.randn(2, 3, 2, 96 if "mobile" in name else 160, 96 if "mobile" in name else 160)
    with torch.inference_mode():
        expected = [library.forward_features(frame) for frame in clip.unbind(2)]
        found = network.forward_features(clip)
    assert found.shape[:2] == (2, network.num_map_features) and found.dim() == 5
    for frame, theirs in enumerate(expected):
        if theirs.dim() == 3:  # tokens: (B, D, T N, 1, 1)
            part = found[..., 0, 0].unflatten(2, (2, -1))[:, :, frame].transpose(1, 2)
        else:
            part = found[:, :, frame]
            part = part if theirs.shape[1] == network.num_map_features else part.permute(0, 2, 3, 1)
        assert torch.allclose(part, theirs, atol=1e-5)


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "vit_small_patch14_dinov2", "vgg11", "convnext_tiny"])
def test_maps_of_every_kind_have_the_channels_that_the_network_says(name: str) -> None:
    with torch.device("meta"):
        network = ImageNetwork(timm.create_model(name, pretrained=False, num_classes=0), name).eval()
        features = network.forward_features(torch.empty(2, 3, *network.metadata.input_size))
    assert features.shape[:2] == (2, network.num_map_features)
    assert features.flatten(2).shape[2] > 1


def test_a_network_with_several_maps_is_refused() -> None:
    with torch.device("meta"):
        network = ImageNetwork(timm.create_model("crossvit_9_240", pretrained=False, num_classes=0), "crossvit").eval()
    with pytest.raises(ValueError, match="crossvit has no single feature map before its pooling"):
        network.forward_features(torch.empty(1, 3, *network.metadata.input_size, device="meta"))


def small_mvit() -> nn.Module:
    """MViT v2 with two blocks, on clips of 4 x 32 x 32."""
    kernels: dict[str, Any] = {"num_heads": 1, "kernel_q": [3, 3, 3], "kernel_kv": [3, 3, 3]}
    blocks = [
        MSBlockConfig(input_channels=16, output_channels=16, stride_q=[1, 1, 1], stride_kv=[1, 2, 2], **kernels),
        MSBlockConfig(input_channels=16, output_channels=32, stride_q=[1, 2, 2], stride_kv=[1, 1, 1], **kernels),
    ]
    options = {"residual_pool": True, "residual_with_cls_embed": False, "rel_pos_embed": True, "proj_after_attn": True}
    network: nn.Module = MViT((32, 32), 4, blocks, **options)
    return network


HEADLESS = {"r2plus1d_18": (2, 32, 32), "swin3d_t": (2, 64, 64), "mvit_v2_s": (4, 32, 32), "s3d": (14, 64, 64)}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), HEADLESS.items())
def test_features_and_maps_are_those_of_torchvision_without_its_head(
    name: str, size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(5)
    theirs: Any = (small_mvit() if name == "mvit_v2_s" else get_model(name, weights=None)).eval()
    if name == "s3d":
        theirs.avgpool = nn.AvgPool3d(2, stride=1)  # its own is for 224 pixels
    for parameter in theirs.parameters():  # norms and biases are no identities
        if parameter.dim() == 1:
            nn.init.normal_(parameter, mean=0.5, std=0.2)
    monkeypatch.setitem(NETWORKS, name, replace(NETWORKS[name], length=size[0], size=size[1], smallest=(2, 32, 32)))
    ours = VideoNetwork(copy.deepcopy(theirs), name, trained="not at all").eval()
    head = next(one for one in ("fc", "classifier", "head") if hasattr(theirs, one))
    seen: list[Tensor] = []
    getattr(theirs, head).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    clip = torch.randn(1, 3, *size)
    with torch.inference_mode():
        theirs(clip)
        feature, features = ours(clip), ours.forward_features(clip)
    expected = seen[0].mean(dim=(2, 3, 4)) if name == "s3d" else seen[0].flatten(1)  # S3D classifies places, then means
    assert torch.allclose(feature, expected, rtol=1e-4, atol=1e-5) and feature.std() > 1e-3
    if name == "mvit_v2_s":
        pooled = features[:, :, 0, 0, 0]  # the token of the class
    elif name == "s3d":
        pooled = theirs.avgpool(features).mean(dim=(2, 3, 4))  # it averages pairs of frames first
    else:
        pooled = features.mean(dim=(2, 3, 4))
    assert torch.allclose(pooled, feature, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("architecture", ["VideoMAEForPreTraining", "VJEPA2ForVideoClassification"])
def test_tokens_of_transformers_are_what_its_pooling_takes(architecture: str, tmp_path: Path) -> None:
    save_tiny(tmp_path / "tiny", architecture)
    network: Any = load_named_network(f"transformers:{tmp_path / 'tiny'}").network
    clip = torch.randn(2, 3, 4, SIZE, SIZE)
    with torch.inference_mode():
        features = network.forward_features(clip)
        assert features.shape == (2, network.num_features, 2 * (SIZE // 16) ** 2, 1, 1)
        assert torch.allclose(network.trunk[0].pool(features[..., 0, 0].transpose(1, 2)), network(clip), atol=1e-5)


# Files


def test_it_is_an_encoder_like_any_other(address: str, tmp_path: Path) -> None:
    encoder = cc.load_encoder(address)
    assert not encoder.training and all(one.requires_grad for one in encoder.parameters())
    folder = cc.save_pretrained(address, tmp_path / "shared", license="apache-2.0")
    assert str(tmp_path) not in (folder / "README.md").read_text() + (folder / "config.json").read_text()
    clip = clip_for(encoder)
    with torch.inference_mode():
        expected = encoder(clip)
        for again in (cc.from_pretrained(folder), cc.load_encoder(folder), load_eval_model(folder).network):
            assert torch.equal(again(clip), expected)
    assert cc.from_pretrained(folder).metadata == encoder.metadata
    assert cc.load_guide(folder, layer="encoder").transform is not None  # its own preprocessing, not a run's views


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["finetune", "attentive"])
def test_it_is_trained_on_labels_and_its_checkpoint_is_evaluated(address: str, mode: str, tmp_path: Path) -> None:
    eval_model = load_eval_model(address)
    config = finetune_config(mode, epochs=1, batch_size=4, num_crops=1, val_fraction=0.3)
    clips = SyntheticClips(num_classes=2, num_frames=16)
    eval_protocol = build_eval_protocol(eval_model.metadata, num_windows=1)
    result = run_finetune(eval_model, clips, tmp_path / "run", config, eval_protocol=eval_protocol)
    assert result.scores.num_videos == 4
    best = load_eval_model(tmp_path / "run" / "best.pt")
    same = weights_sha256(best.network) == weights_sha256(eval_model.network)
    assert same == (mode == "attentive")
    assert f"then {mode} on labels" in best.metadata.trained and best.metadata.resize == eval_model.metadata.resize
    with torch.inference_mode():
        assert best.network(clip_for(best.network)).shape == (2, best.network.num_features)


@pytest.mark.slow
def test_files_of_torchvisions_networks_are_read_back(tmp_path: Path) -> None:
    network = create_video_network("r3d_18").eval()
    path = tmp_path / "r3d.safetensors"
    save_encoder(path, network, network.metadata)
    assert weights_sha256(load_weights(path).encoder) == weights_sha256(network)


def test_what_cannot_work_is_refused_by_name(address: str, tmp_path: Path) -> None:
    for name, option in {"branch": "target", "in_channels": 2, "adapt": "mean", "bn_eps": 1e-3}.items():
        with pytest.raises(ValueError, match=f"network of another library, loaded as it is: leave out {name}"):
            cc.load_encoder(address, **{name: option})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="leave out keep_head"):
        cc.save_pretrained(address, tmp_path / "shared", keep_head=True)
    with pytest.raises(ValueError, match="has random weights: there is nothing to share"):
        cc.save_pretrained("torchvision:r3d_18?weights=random", tmp_path / "shared")
    with pytest.raises(ValueError, match=r"it can be a guide .* but a run starts from an encoder of this package"):
        init_network("s3d_tiny", modality=get_modality("rgb"), head=head_layout("cmsf", 64), init=address, branch=None)


def test_other_tensors_than_the_library_has_are_refused_before_anything_is_built(address: str, tmp_path: Path) -> None:
    encoder = cc.load_encoder(address)
    assert encoder.metadata is not None
    state = dict(encoder.state_dict())
    state.pop(sorted(state)[0])
    with pytest.raises(ValueError, match="file.pt does not fit .* 1 tensors are missing, unknown or of another shape"):
        rebuild_named_network(encoder.metadata, state, location="file.pt")
    if encoder.metadata.settings is not None:
        settings = {**encoder.metadata.settings, "config": {"num_hidden_layers": 10**9}}
        huge = encoder.metadata.model_copy(update={"settings": settings})
        with pytest.raises(ValueError, match="num_hidden_layers=1000000000 in its settings, and"):
            rebuild_named_network(huge, encoder.state_dict(), location="file.pt")
