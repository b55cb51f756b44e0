"""Networks of a run: heads as described, starts taken from files as they are, misfits refused."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from covid_cmsf.models import create_encoder
from covid_cmsf.training.method_settings import HeadSettings
from covid_cmsf.training.networks import Network, head_layout, predictor_for, slow_copy, start_network
from covid_cmsf.training.parts import build_parts
from covid_cmsf.training.processes import Processes
from covid_cmsf.training.run import run_training
from tests.training.runs import settings, state

ALONE = Processes(0, 1, torch.device("cpu"))
INFONCE = {"name": "infonce", "bank_rows": 16}


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
    layout = head_layout(HeadSettings(projector=projector), 64)
    assert layout.sizes == sizes and layout.batch_norm == batch_norm and not layout.output_batch_norm
    wide = head_layout(HeadSettings(projector=projector, embedding_size=9, output_batch_norm=True), 64)
    assert wide.sizes == (*sizes[:-1], 9) and wide.output_batch_norm


def test_the_predictor_is_as_wide_as_cmsfs_projector() -> None:
    encoder, projector, words = start_network("toy", in_channels=3, head=HeadSettings(), init=None, part=None)
    predictor = predictor_for(projector, encoder)
    assert projector.layout.sizes == (32, 64, 8) and predictor.layout.sizes == (8, 64, 8)
    assert predictor.layout.batch_norm and not predictor.layout.output_batch_norm and words == "random weights"


def test_the_target_is_a_copy_without_predictor_and_gradients() -> None:
    encoder, projector, _ = start_network("toy", in_channels=3, head=HeadSettings(), init=None, part=None)
    online = Network(encoder, projector, predictor=predictor_for(projector, encoder))
    target = slow_copy(online)
    assert target.predictor is None and not any(weight.requires_grad for weight in target.parameters())
    assert all(torch.equal(tensor, online.state_dict()[name]) for name, tensor in target.state_dict().items())
    target.encoder.trunk[0].weight.data += 1
    assert not torch.equal(target.encoder.trunk[0].weight, online.encoder.trunk[0].weight)
    view = torch.randn(4, 3, 8, 32, 32)
    assert torch.allclose(online(view).norm(dim=1), torch.ones(4)) and target(view).shape == (4, 8)


@pytest.mark.parametrize("output_batch_norm", [False, True])
def test_the_head_of_the_start_is_reused_as_it_is(output_batch_norm: bool, clips: Path, rgb_weights: Path) -> None:
    head = {"reuse": True, "output_batch_norm": output_batch_norm}
    chosen = settings(clips, init=str(rgb_weights), method={**INFONCE, "head": head})
    parts = build_parts(chosen, ALONE)
    file = torch.load(rgb_weights, weights_only=True)["state"]
    for name, tensor in parts.network.state_dict().items():
        if f"online.{name}" in file:
            assert torch.equal(tensor, file[f"online.{name}"]), name
    new = [name for name in parts.network.state_dict() if f"online.{name}" not in file]
    assert len(new) == (5 if output_batch_norm else 0) and all(name.startswith("projector.3.") for name in new)
    assert kinds(parts.network.projector)[-1] == ("BatchNorm1d" if output_batch_norm else "Linear")
    assert "with its projector" in parts.words and "infonce on rgb" in parts.words


def test_without_reuse_only_the_encoder_is_taken(clips: Path, rgb_weights: Path) -> None:
    file = torch.load(rgb_weights, weights_only=True)["state"]
    for part in ("online", "target"):
        network = build_parts(settings(clips, init=str(rgb_weights), init_part=part), ALONE).network
        for name, tensor in network.encoder.state_dict().items():
            assert torch.equal(tensor, file[f"{part}.encoder.{name}"]), name
        assert not torch.equal(network.projector[0].weight, file[f"{part}.projector.0.weight"])


def test_a_projector_with_batch_norm_at_its_end_is_saved_and_reused(clips: Path, tmp_path: Path) -> None:
    head = {"projector": "cmsf", "output_batch_norm": True}
    run_training(settings(clips, method={**INFONCE, "head": head}, schedule={"epochs": 1}), tmp_path / "run")
    last = str(tmp_path / "run" / "checkpoints" / "last.pt")
    chosen = settings(clips, init=last, method={**INFONCE, "head": {"reuse": True, "output_batch_norm": True}})
    network = build_parts(chosen, ALONE).network
    assert kinds(network.projector) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    for name, tensor in network.projector.state_dict().items():
        assert torch.equal(tensor, state(tmp_path / "run")[f"online.projector.{name}"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"encoder": "s3d_tiny"}, "holds toy, not s3d_tiny"),
        ({"modality": "flow"}, "3 input channels and 2 were asked for"),
        ({"method": {**INFONCE, "head": {"reuse": True, "embedding_size": 7}}}, "its projector ends in 128 values"),
        ({"init_part": "guide"}, "guide"),
        ({"init": "nowhere.pt"}, "init: no file nowhere.pt"),
    ],
)
def test_a_start_that_does_not_fit_is_refused(
    changes: dict[str, Any], words: str, clips: Path, rgb_weights: Path
) -> None:
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        build_parts(settings(clips, **{"init": str(rgb_weights), **changes}), ALONE)


def test_a_bare_encoder_has_no_head_to_reuse(clips: Path, frame_weights: Path) -> None:
    chosen = settings(
        clips, modality="frame", encoder="r18", init=str(frame_weights), method={**INFONCE, "head": {"reuse": True}}
    )
    with pytest.raises(ValueError, match="has no projection head"):
        build_parts(chosen, ALONE)


def test_the_card_says_what_the_weights_have_seen(clips: Path) -> None:
    card = build_parts(settings(clips, modality="flow"), ALONE).card
    assert (card.encoder, card.in_channels, card.input_size, card.modality) == ("toy", 2, (8, 32, 32), "flow")
    assert card.trained == "infonce on flow, 2 epochs" and card.std == (4.0, 4.0) and card.projector is not None
    assert card.bn_eps == next(part.eps for part in create_encoder("toy").modules() if isinstance(part, nn.BatchNorm3d))
