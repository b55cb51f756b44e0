"""Networks by name, their targets and guides, as a user's own loop needs them."""

from pathlib import Path

import pytest
import torch

from covid_cmsf.models import (
    HEADS,
    EncoderMetadata,
    Network,
    create_network,
    ema_update_,
    load_encoder,
    load_guide,
    make_target,
    save_encoder,
)
from covid_cmsf.views.modalities import get_modality

CLIP = torch.randn(4, 2, 4, 32, 32, generator=torch.Generator().manual_seed(0))


def saved(folder: Path, network: Network, *, head: bool = True) -> Path:
    """The encoder (and projector) in an exchange file."""
    known = get_modality("flow")
    metadata = EncoderMetadata(
        encoder=network.encoder.name, in_channels=2, input_size=(4, 32, 32), mean=known.mean, std=known.std,
        modality="flow", bn_eps=1e-5, projector=network.projector.layout if head else None,
    )  # fmt: skip
    path = folder / "flow.safetensors"
    save_encoder(path, network.encoder, metadata, projector=network.projector if head else None)
    return path


@pytest.mark.parametrize("head", HEADS)
def test_a_network_has_the_head_and_the_size_it_says(head: str) -> None:
    network = create_network("c21d_tiny", modality="flow", head=head, predictor=True)
    embedding = network(CLIP)
    assert embedding.shape == (4, network.dim) == (4, network.projector.layout.sizes[-1])
    torch.testing.assert_close(embedding.norm(dim=1), torch.ones(4))
    small = create_network("c21d_tiny", modality="flow", head=head, embedding_size=6, output_batch_norm=True)
    assert small.dim == 6 and small.predictor is None and small.projector.layout.output_batch_norm


def test_an_unknown_head_is_refused_with_the_choices() -> None:
    with pytest.raises(ValueError, match="unknown head 'cmfs'; choose from cmsf, coclr"):
        create_network("c21d_tiny", head="cmfs")


def test_the_target_follows_the_online_network() -> None:
    online = create_network("c21d_tiny", modality="flow", predictor=True)
    target = make_target(online)
    assert target.predictor is None and target.dim == online.projector.layout.sizes[-1]
    assert not any(weight.requires_grad for weight in target.parameters())
    before = {key: value.clone() for key, value in target.named_parameters()}
    with torch.no_grad():
        for weight in online.parameters():
            weight.add_(1)
    ema_update_(target, online, 0.9)
    for key, value in target.named_parameters():
        torch.testing.assert_close(value, before[key] + 0.1)


@pytest.mark.parametrize("layer", ["projector", "encoder"])
def test_a_guide_is_frozen_and_gives_unit_vectors(tmp_path: Path, layer: str) -> None:
    network = create_network("c21d_tiny", modality="flow", head="coclr").eval()
    guide = load_guide(saved(tmp_path, network), layer=layer)
    assert guide.modality == "flow" and guide.column == "guide_flow"
    assert guide.dim == (128 if layer == "projector" else network.encoder.num_features)
    guide.train()
    embedding = guide(CLIP)
    guide.check_unchanged()
    assert not embedding.requires_grad and embedding.shape == (4, guide.dim)
    feature = network.encoder(CLIP)
    slow = network.projector(feature) if layer == "projector" else feature
    torch.testing.assert_close(embedding, torch.stack([row / row.norm() for row in slow.detach()]))


def test_a_file_without_a_head_guides_by_its_feature_only_when_asked(tmp_path: Path) -> None:
    path = saved(tmp_path, create_network("c21d_tiny", modality="flow"), head=False)
    with pytest.raises(ValueError, match="no projection head"):
        load_guide(path)
    assert load_guide(path, layer="encoder").dim == load_encoder(path).num_features
    with pytest.raises(ValueError, match="unknown layer 'head'; choose from projector, encoder"):
        load_guide(path, layer="head")
