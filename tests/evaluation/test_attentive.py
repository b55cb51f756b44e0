"""The attentive probe: its head, the choice of the learning rate, and that the encoder stays as it is."""

from pathlib import Path

import pytest
import torch

from covid_cmsf.evaluation.features.model import load_eval_model
from covid_cmsf.evaluation.finetune.attentive import AttentiveClassifier, num_heads
from covid_cmsf.evaluation.finetune.config import finetune_config
from covid_cmsf.evaluation.finetune.run import run_finetune
from covid_cmsf.models.encoder import weights_sha256
from covid_cmsf.preflight import PreflightError
from tests.evaluation.factories import SyntheticClips, small_encoder

QUICK = {"batch_size": 6, "val_fraction": 0.3}


def test_the_head_equals_attention_written_out() -> None:
    torch.manual_seed(0)
    head = AttentiveClassifier(6, 4).eval()
    features = torch.randn(3, 6, 2, 3, 2)
    attention, (b_query, b_key, b_value) = head.attention, head.attention.in_proj_bias.chunk(3)
    w_query, w_key, w_value = head.attention.in_proj_weight.chunk(3)
    for sample, found in zip(features, head(features), strict=True):
        tokens = [head.token_norm(sample[:, t, h, w]) for t in range(2) for h in range(3) for w in range(2)]
        query = w_query @ head.query[0, 0] + b_query
        scores = torch.stack([query @ (w_key @ one + b_key) / 6**0.5 for one in tokens]).softmax(0)
        value = sum(score * (w_value @ one + b_value) for score, one in zip(scores, tokens, strict=True))
        pooled = head.query[0, 0] + attention.out_proj(value)
        pooled = pooled + head.mlp(head.norm(pooled))
        torch.testing.assert_close(found, head.linear(pooled))


def test_heads_have_64_features_or_the_next_size_that_divides_them() -> None:
    assert [num_heads(size) for size in (32, 64, 100, 200, 1024)] == [1, 1, 1, 2, 16]


def test_it_sees_what_the_average_hides() -> None:
    """One place of the map has the class, with a sign that the others cancel."""
    torch.manual_seed(0)
    labels = torch.arange(64) % 2
    maps = 0.1 * torch.randn(64, 8, 1, 2, 2)
    maps[:, 0, 0, 0, 0] = 2.0 * labels - 1
    maps[:, 1, 0, 0, 0] = 3.0  # what the query can attend to
    maps[:, 0, 0, 1, 1] -= maps[:, 0].sum(dim=(1, 2, 3))
    assert float(maps.mean(dim=(2, 3, 4))[:, 0].abs().max()) < 1e-5
    head = AttentiveClassifier(8, 2)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-2)
    for _ in range(40):
        loss = torch.nn.functional.cross_entropy(head(maps), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert float((head(maps).argmax(1) == labels).double().mean()) == 1.0


@pytest.mark.slow
def test_the_learning_rate_is_chosen_on_validation_and_the_encoder_stays_frozen(tmp_path: Path) -> None:
    encoder, eval_model = small_encoder()
    config = finetune_config("attentive", **QUICK, epochs=3)
    result = run_finetune(eval_model, SyntheticClips(), tmp_path / "run", config, lrs=(1e-6, 3e-3))
    assert set(result.lrs) == {"1e-06", "0.003"}
    chosen = max(result.lrs, key=lambda lr: result.lrs[lr])
    assert f"{result.provenance['config']['lr']:g}" == chosen
    assert max(entry["val"] for entry in result.history) == result.lrs[chosen]
    best = tmp_path / "run" / "best.pt"
    assert best.read_bytes() == (tmp_path / "run" / f"lr-{chosen}" / "best.pt").read_bytes()
    assert weights_sha256(load_eval_model(best).network) == weights_sha256(encoder)
    again = run_finetune(eval_model, SyntheticClips(), tmp_path / "run", config, lrs=(1e-6, 3e-3))
    assert again.scores == result.scores and again.history == result.history  # resumed: nothing was left to train


def test_a_choice_without_validation_is_refused(tmp_path: Path) -> None:
    _, eval_model = small_encoder()
    config = finetune_config("attentive", **{**QUICK, "val_fraction": 0})
    with pytest.raises(PreflightError, match="chosen on validation"):
        run_finetune(eval_model, SyntheticClips(), tmp_path / "run", config, lrs=(1e-4, 1e-3))
    assert not (tmp_path / "run").exists()
