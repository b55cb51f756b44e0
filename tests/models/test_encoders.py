"""Every encoder of the registry does what the zoo promises."""

import pytest
import torch
from torchvision.models import ResNet18_Weights, ResNet50_Weights
from torchvision.models.video import S3D_Weights

from covid_cmsf.models import Encoder, create_model, encoder_entry, freeze_, list_models
from covid_cmsf.models.encoder import parse_size
from covid_cmsf.models.profile import count_parameters, profile_encoder
from covid_cmsf.models.registry import register_encoder

pytestmark = pytest.mark.slow  # too long as a whole for the inner loop

NAMES = list_models()
SMALL = (6, 32, 40)  # T, H, W; not square, and no multiple of the strides


def clip_for(encoder: Encoder, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, encoder.in_channels, *SMALL)


def test_the_zoo_holds_what_the_issue_asks_for() -> None:
    assert {"s3d", "s3dg", "s3d_half", "s3d_tiny", "c21d_tiny", "r18", "r50", "r18_cifar", "r10_small"} <= set(NAMES)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("in_channels", [1, 2, 3])
def test_feature_is_the_mean_of_the_feature_map(name: str, in_channels: int) -> None:
    encoder = create_model(name, in_channels=in_channels).eval()
    clip = clip_for(encoder, batch=1)
    with torch.inference_mode():
        feature_map, feature = encoder.forward_features(clip), encoder(clip)
    assert feature_map.dim() == 5 and feature_map.shape[:2] == (1, encoder.num_features)
    slow = torch.tensor([[channel.double().mean() for channel in row] for row in feature_map])
    torch.testing.assert_close(feature.double(), slow.double(), atol=1e-6, rtol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_parameter(name: str) -> None:
    encoder = create_model(name)
    encoder(clip_for(encoder)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in encoder.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_channels_last_and_stay_so_after_loading(name: str) -> None:
    encoder = create_model(name)
    encoder.load_state_dict({key: value.contiguous() for key, value in create_model(name).state_dict().items()})
    convs = [p for p in encoder.parameters() if p.dim() >= 4]
    assert convs and all(p.is_contiguous(memory_format=encoder.memory_format) for p in convs)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_smallest_clip_works_and_one_less_is_refused(name: str) -> None:
    encoder = create_model(name).eval()
    with torch.device("meta"):
        on_meta = create_model(name).eval()
        assert on_meta(torch.empty(1, 3, *encoder.min_input_size)).shape == (1, encoder.num_features)
    for axis in range(3):
        size = list(encoder.min_input_size)
        size[axis] -= 1
        with pytest.raises((ValueError, RuntimeError, ZeroDivisionError)):  # the network itself cannot do it ...
            on_meta.trunk(torch.empty(1, 3, *size, device="meta"))
        with pytest.raises(ValueError, match=rf"too small for {name}: its strides need at least"):  # ... and we say so
            encoder(torch.randn(1, 3, *size))


@pytest.mark.parametrize("name", NAMES)
def test_unfit_clips_are_refused_with_their_shape(name: str) -> None:
    encoder = create_model(name, in_channels=2)
    with pytest.raises(ValueError, match="takes 2 input channels, the clip has 3"):
        encoder(torch.randn(1, 3, *SMALL))
    with pytest.raises(ValueError, match=r"\(B, C, T, H, W\)"):
        encoder(torch.randn(3, 32, 32))
    with pytest.raises(ValueError, match=r"floating-point clips, not torch.uint8"):
        encoder(torch.zeros(1, 2, *SMALL, dtype=torch.uint8))


@pytest.mark.parametrize("name", NAMES)
def test_a_frozen_encoder_cannot_be_woken(name: str) -> None:
    encoder = freeze_(create_model(name))
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    torch.nn.Sequential(encoder).train()
    encoder(clip_for(encoder, batch=1))
    assert not encoder.training and not any(m.training for m in encoder.modules())
    assert not any(p.requires_grad for p in encoder.parameters())
    assert all(torch.equal(before[key], value) for key, value in encoder.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
def test_bn_eps_reaches_every_batch_norm(name: str) -> None:
    norms = [
        m for m in create_model(name, bn_eps=1e-3).modules() if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)
    ]
    assert norms and all(norm.eps == 1e-3 for norm in norms)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_counted_parameters_are_those_of_the_layers(name: str) -> None:
    cost = profile_encoder(name, encoder_entry(name).default_input_size)
    assert cost.num_parameters == sum(layer.num_parameters for layer in cost.layers)
    assert cost.gflops == pytest.approx(sum(layer.gflops for layer in cost.layers), rel=1e-2)  # gates are outside


@pytest.mark.parametrize("name", ["r18", "r50", "r18_cifar"])
def test_2d_encoders_see_frames_one_by_one_and_images_as_clips_of_one(name: str) -> None:
    encoder = create_model(name).eval()
    clip = torch.randn(2, 3, 3, 32, 32)
    with torch.inference_mode():
        together = encoder.forward_features(clip)
        alone = torch.stack([encoder.forward_features(clip[:, :, t])[:, :, 0] for t in range(3)], dim=2)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("name", "parameters"), [("s3d", 7_910_048), ("s3dg", 9_098_000)])
def test_parameter_counts_are_those_of_coclr(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert count_parameters(create_model(name)) == parameters


@pytest.mark.slow
def test_operations_agree_with_torchvisions_tables() -> None:
    s3d, r18, r50 = S3D_Weights.KINETICS400_V1, ResNet18_Weights.IMAGENET1K_V1, ResNet50_Weights.IMAGENET1K_V1
    # Their tables include the classifier, 0.4 million multiply-accumulates at most for S3D and 2 for ResNet-50.
    assert profile_encoder("s3d", (16, 224, 224)).gflops == pytest.approx(s3d.meta["_ops"], abs=0.01)
    assert profile_encoder("r18", (1, 224, 224)).gflops == pytest.approx(r18.meta["_ops"], abs=0.003)
    assert profile_encoder("r50", (1, 224, 224)).gflops == pytest.approx(r50.meta["_ops"], abs=0.003)


def test_unknown_and_repeated_names_are_errors() -> None:
    with pytest.raises(
        ValueError, match=r"unknown encoder 's3dd'; choose from c21d_tiny, r10_small, r18, r18_cifar, r50, s3d"
    ):
        create_model("s3dd")
    with pytest.raises(ValueError, match="'s3d' is already registered"):
        register_encoder("s3d", default_input_size=(1, 1, 1), summary="again")(encoder_entry("s3d").build)
    with pytest.raises(ValueError, match="in_channels = 0"):
        create_model("s3d", in_channels=0)
    with pytest.raises(ValueError, match="bn_eps = 0"):
        create_model("s3d", bn_eps=0)


def test_sizes_are_read_as_frames_height_width() -> None:
    assert parse_size("32x128x112") == (32, 128, 112)
    for bad in ("32x128", "axbxc", "0x1x1", ""):
        with pytest.raises(ValueError, match="TxHxW"):
            parse_size(bad)
