import pytest
import torch
from torch import Tensor

from covid_cmsf.models import (
    MLP,
    Classifier,
    HeadLayout,
    Network,
    coclr_layout,
    create_model,
    predictor_layout,
    projector_layout,
)

LAYOUTS = [
    projector_layout(32),
    projector_layout(32, output_batch_norm=True),
    predictor_layout(32),
    coclr_layout(32),
    HeadLayout(sizes=(32, 5)),
    HeadLayout(sizes=(32, 16, 8, 4), batch_norm=True),
]


def slow_norm(x: Tensor) -> Tensor:
    """Batch norm at its start: each column to mean 0 and (biased) variance 1."""
    return (x - x.mean(dim=0)) / (x.var(dim=0, unbiased=False) + 1e-5).sqrt()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_mlp_equals_its_slow_twin(layout: HeadLayout) -> None:
    head = MLP(layout)
    x = torch.randn(8, layout.sizes[0])
    slow = x
    linears = [layer for layer in head if isinstance(layer, torch.nn.Linear)]
    for i, linear in enumerate(linears):
        slow = slow @ linear.weight.T + linear.bias
        last = i == len(linears) - 1
        if layout.output_batch_norm if last else layout.batch_norm:
            slow = slow_norm(slow)
        slow = slow if last else slow.clamp(min=0)
    torch.testing.assert_close(head(x), slow, atol=1e-5, rtol=1e-4)


def test_sizes_are_those_of_the_official_code() -> None:
    assert projector_layout(2048).sizes == (2048, 4096, 512)
    assert predictor_layout(2048).sizes == (512, 4096, 512)
    assert projector_layout(512).sizes == (512, 1024, 128)
    assert coclr_layout(1024) == HeadLayout(sizes=(1024, 1024, 128))
    assert list(MLP(projector_layout(8)).state_dict())[:2] == ["0.weight", "0.bias"]
    assert {key.split(".")[0] for key in MLP(projector_layout(8)).state_dict()} == {"0", "1", "3"}
    assert {key.split(".")[0] for key in MLP(coclr_layout(8)).state_dict()} == {"0", "2"}


def test_linear_probe_normalizes_then_standardizes() -> None:
    probe = Classifier(6, 3, normalize=True, batch_norm=True)
    x = torch.randn(10, 6)
    units = torch.stack([row / row.norm() for row in x])
    linear = probe.mlp[0]
    assert isinstance(linear, torch.nn.Linear)
    torch.testing.assert_close(probe(x), slow_norm(units) @ linear.weight.T + linear.bias, atol=1e-5, rtol=1e-4)


def test_mlp_classifier_has_one_hidden_layer_and_no_other() -> None:
    assert Classifier(6, 3, hidden=5).mlp.layout.sizes == (6, 5, 3)
    assert Classifier(6, 3).mlp.layout.sizes == (6, 3)


def test_dropout_acts_in_training_only() -> None:
    head = Classifier(64, 2, dropout=0.9)
    x = torch.randn(4, 64)
    assert not torch.equal(head(x), head(x))
    head.eval()
    assert torch.equal(head(x), head(x))


def test_embeddings_are_unit_vectors() -> None:
    encoder = create_model("s3d_tiny")
    projector = MLP(projector_layout(encoder.num_features))
    embedder = Network(encoder, projector).eval()
    clip = torch.randn(2, 3, 8, 32, 32)
    embedding = embedder(clip)
    assert embedding.shape == (2, encoder.num_features // 4)
    slow = torch.stack([row / row.norm() for row in projector(encoder(clip))])
    torch.testing.assert_close(embedding, slow)


def test_a_projector_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="100 features does not fit s3d_tiny, which has 256"):
        Network(create_model("s3d_tiny"), MLP(HeadLayout(sizes=(100, 5))))


def test_a_layout_with_one_size_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        HeadLayout(sizes=(5,))
