"""Networks of a run: heads as described, starts taken from files as they are, misfits refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from covid_cmsf.methods.base import HeadConfig
from covid_cmsf.models import create_model
from covid_cmsf.models.heads import head_layout
from covid_cmsf.models.networks import Network, make_predictor, make_target
from covid_cmsf.training.build import build_components, init_network
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.run import run_training
from covid_cmsf.views.modalities import get_modality
from tests.training.factories import make_config, state

RGB = get_modality("rgb")

ALONE = DistributedContext(0, 1, torch.device("cpu"))
INFONCE = {"name": "infonce", "bank_size": 16}


def kinds(module: nn.Module) -> list[str]:
    return [type(layer).__name__ for layer in module.children()]


@pytest.mark.parametrize(
    ("projector", "sizes", "batch_norm"),
    [
        ("cmsf", (64, 128, 16), True),
        ("coclr", (64, 64, 128), False),
        ("supcon", (64, 64, 128), True),
        ("mlp", (64, 64, 64), True),
        ("linear", (64, 64), False),
    ],
)
def test_heads_are_those_of_the_papers(projector: Any, sizes: tuple[int, ...], batch_norm: bool) -> None:
    layout = head_layout(projector, 64)
    assert layout.sizes == sizes and layout.batch_norm == batch_norm and not layout.output_batch_norm
    wide = head_layout(projector, 64, embedding_size=9, output_batch_norm=True)
    assert wide.sizes == (*sizes[:-1], 9) and wide.output_batch_norm


def test_the_predictor_is_as_wide_as_cmsfs_projector() -> None:
    encoder, projector, description = init_network("toy", modality=RGB, head=HeadConfig(), init=None, branch=None)
    predictor = make_predictor(projector, encoder)
    assert projector.layout.sizes == (32, 64, 8) and predictor.layout.sizes == (8, 64, 8)
    assert predictor.layout.batch_norm and not predictor.layout.output_batch_norm and description == "random weights"


def test_the_target_is_a_copy_without_predictor_and_gradients() -> None:
    encoder, projector, _ = init_network("toy", modality=RGB, head=HeadConfig(), init=None, branch=None)
    online = Network(encoder, projector, predictor=make_predictor(projector, encoder))
    target = make_target(online)
    assert target.predictor is None and not any(weight.requires_grad for weight in target.parameters())
    assert all(torch.equal(tensor, online.state_dict()[name]) for name, tensor in target.state_dict().items())
    weight, online_weight = next(target.encoder.parameters()), next(online.encoder.parameters())
    weight.data += 1
    assert not torch.equal(weight, online_weight)
    view = torch.randn(4, 3, 8, 32, 32)
    assert torch.allclose(online(view).norm(dim=1), torch.ones(4)) and target(view).shape == (4, 8)


@pytest.mark.parametrize("output_batch_norm", [False, True])
def test_the_head_of_the_start_is_reused_as_it_is(output_batch_norm: bool, clips: Path, rgb_weights: Path) -> None:
    head = {"reuse": True, "output_batch_norm": output_batch_norm}
    chosen = make_config(clips, init=str(rgb_weights), method={**INFONCE, "head": head})
    components = build_components(chosen, ALONE)
    file = torch.load(rgb_weights, weights_only=True)["state"]
    for name, tensor in components.network.state_dict().items():
        if f"online.{name}" in file:
            assert torch.equal(tensor, file[f"online.{name}"]), name
    new = [name for name in components.network.state_dict() if f"online.{name}" not in file]
    assert len(new) == (5 if output_batch_norm else 0) and all(name.startswith("projector.3.") for name in new)
    assert kinds(components.network.projector)[-1] == ("BatchNorm1d" if output_batch_norm else "Linear")
    assert "with its projector" in components.init_description and "infonce on rgb" in components.init_description


def test_without_reuse_only_the_encoder_is_taken(clips: Path, rgb_weights: Path) -> None:
    file = torch.load(rgb_weights, weights_only=True)["state"]
    for branch in ("online", "target"):
        network = build_components(make_config(clips, init=str(rgb_weights), init_branch=branch), ALONE).network
        for name, tensor in network.encoder.state_dict().items():
            assert torch.equal(tensor, file[f"{branch}.encoder.{name}"]), name
        assert network.projector is not None
        weight = network.projector.state_dict()["0.weight"]
        assert not torch.equal(weight, file[f"{branch}.projector.0.weight"])


def test_a_projector_with_batch_norm_at_its_end_is_saved_and_reused(clips: Path, tmp_path: Path) -> None:
    head = {"projector": "cmsf", "output_batch_norm": True}
    run_training(make_config(clips, method={**INFONCE, "head": head}, schedule={"epochs": 1}), tmp_path / "run")
    last = str(tmp_path / "run" / "checkpoints" / "last.pt")
    chosen = make_config(clips, init=last, method={**INFONCE, "head": {"reuse": True, "output_batch_norm": True}})
    network = build_components(chosen, ALONE).network
    assert kinds(network.projector) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    for name, tensor in network.projector.state_dict().items():
        assert torch.equal(tensor, state(tmp_path / "run")[f"online.projector.{name}"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": "s3d_tiny"}, "has an encoder toy, not s3d_tiny"),
        ({"modality": "flow"}, r"is a network for rgb \(3 input channels\), and this run trains on flow"),
        ({"method": {**INFONCE, "head": {"reuse": True, "embedding_size": 7}}}, "its projector ends in 128 values"),
        ({"init_branch": "guide"}, "guide"),
        ({"init": "nowhere.pt"}, "init: no file nowhere.pt"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(
    changes: dict[str, Any], message: str, clips: Path, rgb_weights: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        build_components(make_config(clips, **{"init": str(rgb_weights), **changes}), ALONE)


def test_a_bare_encoder_has_no_head_to_reuse(clips: Path, frame_weights: Path) -> None:
    chosen = make_config(
        clips, modality="frame", encoder="r18", init=str(frame_weights), method={**INFONCE, "head": {"reuse": True}}
    )
    with pytest.raises(ValueError, match="has no projection head"):
        build_components(chosen, ALONE)


def test_the_metadata_says_what_the_weights_have_seen(clips: Path) -> None:
    metadata = build_components(make_config(clips, modality="flow"), ALONE).metadata
    assert (metadata.encoder, metadata.in_channels, metadata.input_size, metadata.modality) == (
        "toy",
        2,
        (8, 32, 32),
        "flow",
    )
    assert (
        metadata.trained == "infonce on flow, 2 epochs"
        and metadata.std == (4.0, 4.0)
        and metadata.projector is not None
    )
    assert metadata.bn_eps == next(
        module.eps for module in create_model("toy").modules() if isinstance(module, nn.BatchNorm3d)
    )


@pytest.mark.parametrize("flow_style", ["motion", "coclr"])
def test_a_flow_network_as_a_start_for_rgb_is_called_that(flow_style: str, clips: Path, tmp_path: Path) -> None:
    views = {"flow_style": flow_style}  # coclr: three channels, as RGB has
    flow = make_config(clips, modality="flow", views=views, schedule={"epochs": 1})
    run_training(flow, tmp_path / "flow")
    config = make_config(clips, init=str(tmp_path / "flow"), views=views)
    with pytest.raises(ValueError, match=r"is a network for flow \(\d input channels\), and this run trains on rgb"):
        build_components(config, DistributedContext(0, 1, torch.device("cpu")))
