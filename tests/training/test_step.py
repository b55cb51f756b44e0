"""One step: equal to doing it by hand, and each option does what it says and nothing else."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from covid_cmsf.models.networks import ema_update_
from covid_cmsf.training.build import TrainComponents, build_components
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.loop import make_step_config
from covid_cmsf.training.monitor import read_metrics
from covid_cmsf.training.run import run_training
from covid_cmsf.training.step import forward_backward, update
from covid_cmsf.views.batch import Batch
from tests.training.factories import make_config

ALONE = DistributedContext(0, 1, torch.device("cpu"))
BYOL = {"name": "byol_asym", "bank_size": 16, "ema_momentum": 0.9}
SGD = {"name": "sgd", "lr": 0.1, "sgd_momentum": 0.0, "weight_decay": 0.01}


def begin(chosen: TrainConfig, count: int) -> tuple[TrainComponents, list[Batch]]:
    """The components of a run and its first batches."""
    components = build_components(chosen, ALONE)
    batches = make_loader(components.data, chosen, ALONE).epoch(0)
    return components, [next(batches) for _ in range(count)]


def weights(components: TrainComponents) -> dict[str, torch.Tensor]:
    return {name: weight.detach().clone() for name, weight in components.network.named_parameters()}


def gradients(components: TrainComponents) -> torch.Tensor:
    return torch.cat([weight.grad.flatten() for weight in components.network.parameters() if weight.grad is not None])


def stepped(chosen: TrainConfig, *, lr: float = 0.1) -> dict[str, torch.Tensor]:
    """How far each weight moves in the first step."""
    components, (batch,) = begin(chosen, 1)
    before = weights(components)
    forward_backward(components, batch, make_step_config(chosen), ALONE)
    update(components, make_step_config(chosen), lr=lr, momentum=0.9)
    return {name: weight - before[name] for name, weight in weights(components).items()}


def test_a_step_of_byol_is_what_one_computes_by_hand(clips: Path) -> None:
    chosen = make_config(clips, precision="fp32", method=BYOL, optimizer=SGD)
    components, (batch,) = begin(chosen, 1)
    online, target = copy.deepcopy(components.network), copy.deepcopy(components.target)
    assert target is not None and online.predictor is not None and components.target is not None
    outcome = forward_backward(components, batch, make_step_config(chosen), ALONE)
    update(components, make_step_config(chosen), lr=0.1, momentum=0.9)

    features = online.encoder(batch.online["rgb"])
    v = F.normalize(online.predictor(online.projector(features)), dim=1)
    with torch.no_grad():
        u = F.normalize(target.projector(target.encoder(batch.target["rgb"])), dim=1)
    loss = sum(2 - 2 * v[i] @ u[i] for i in range(4)) / 4
    loss.backward()  # type: ignore[union-attr]
    assert outcome.loss == pytest.approx(float(torch.as_tensor(loss).detach()), abs=1e-6)
    after = dict(components.network.named_parameters())
    for name, weight in online.named_parameters():
        assert weight.grad is not None
        assert torch.allclose(after[name], weight - 0.1 * (weight.grad + 0.01 * weight), atol=1e-6), name
    for child in ("encoder", "projector"):
        names = dict(getattr(target, child).named_parameters())
        for name, weight in getattr(components.target, child).named_parameters():
            assert torch.allclose(weight, 0.9 * names[name] + 0.1 * after[f"{child}.{name}"], atol=1e-6), name
    assert components.banks is not None and torch.allclose(components.banks.main.embeddings("target"), u, atol=1e-6)
    assert not any(weight.requires_grad or weight.grad is not None for weight in components.target.parameters())


def test_ema_moves_parameters_and_leaves_batch_norm_statistics(clips: Path) -> None:
    components, _ = begin(make_config(clips, method=BYOL), 1)
    target, online = components.target, components.network
    assert target is not None
    for weight in online.parameters():
        weight.data += torch.randn_like(weight)
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    ema_update_(target, online, 0.75)
    named = dict(online.named_parameters())
    for name, tensor in target.state_dict().items():
        expected = 0.75 * before[name] + 0.25 * named[name] if name in named else before[name]
        assert torch.allclose(tensor, expected, atol=1e-6), name


def test_the_predictors_factor_scales_its_step_alone(clips: Path) -> None:
    one = stepped(make_config(clips, precision="fp32", method=BYOL, optimizer=SGD))
    three = stepped(make_config(clips, precision="fp32", method=BYOL, optimizer={**SGD, "predictor_lr_factor": 3.0}))
    for name, moved in one.items():
        factor = 3 if name.startswith("predictor.") else 1
        assert torch.allclose(three[name], factor * moved, atol=1e-6), name
    assert sum(name.startswith("predictor.") for name in one) == 6


def test_two_accumulated_halves_are_one_batch(clips: Path) -> None:
    frozen: dict[str, Any] = {"method": BYOL, "batch_norm": {"mode": "frozen"}}
    whole = make_config(
        clips, precision="fp32", batch_size=8, **{**frozen, "batch_norm": {"mode": "frozen", "groups": 2}}
    )
    components, (batch,) = begin(whole, 1)
    outcome = forward_backward(components, batch, make_step_config(whole), ALONE)
    halves = make_config(clips, precision="fp32", batch_size=4, optimizer={"accumulate": 2}, **frozen)
    other, two = begin(halves, 2)
    assert torch.equal(torch.cat([half.videos for half in two]), batch.videos)
    losses = [forward_backward(other, half, make_step_config(halves), ALONE).loss for half in two]
    assert sum(loss or 0 for loss in losses) / 2 == pytest.approx(outcome.loss, abs=1e-6)
    assert torch.allclose(gradients(other), gradients(components), atol=1e-6)


def test_accumulation_steps_once_for_several_batches(clips: Path, tmp_path: Path) -> None:
    run_training(make_config(clips, optimizer={"accumulate": 2}), tmp_path / "run")
    values = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    assert values["progress"]["step"] == 8  # of five batches an epoch, the last makes no whole step
    assert values["optimizer"]["state"][0]["step"] == 4


def test_a_long_gradient_is_shortened(clips: Path) -> None:
    chosen = make_config(
        clips, precision="fp32", method=BYOL, optimizer={**SGD, "clip_norm": 1e-3, "weight_decay": 0.0}
    )
    moved = torch.cat([one.flatten() for one in stepped(chosen).values()])
    assert float(moved.norm()) == pytest.approx(0.1 * 1e-3, rel=1e-2)


@pytest.mark.parametrize(("method", "silent"), [("msf", 2), ("infonce", 3)])  # msf pushes before its loss
def test_no_step_before_the_bank_holds_enough(method: str, silent: int, clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, method={"name": method, "bank_size": 16, "bank_warmup": 12}, schedule={"epochs": 1})
    run_training(chosen, tmp_path / "run")
    lines = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert [("loss" in line) for line in lines] == [False] * silent + [True] * (5 - silent)
    values = torch.load(tmp_path / "run" / "checkpoints" / "last.pt", weights_only=True)
    assert values["optimizer"]["state"][0]["step"] == 5 - silent
    late = make_config(clips, method={"name": method, "bank_size": 24, "bank_warmup": "full"}, schedule={"epochs": 1})
    with pytest.raises(ValueError, match="trains nothing before the bank has 24 entries"):  # 20 are pushed
        run_training(late, tmp_path / "late")
    assert not (tmp_path / "late").exists()


def test_hidden_labels_are_never_seen_and_true_ones_only_watched(clips: Path) -> None:
    chosen = make_config(clips, precision="fp32", method={"name": "ubernce", "bank_size": 16}, labels={"fraction": 0.3})
    components, batches = begin(chosen, 4)
    for batch in batches:
        outcome = forward_backward(components, batch, make_step_config(chosen), ALONE)
        assert outcome.embedded is not None
        assert torch.equal(outcome.embedded.labels, components.data.labels[batch.videos])
        assert torch.equal(outcome.embedded.true_labels, batch.labels) and bool((batch.labels >= 0).all())
    assert components.banks is not None
    hidden = components.banks.main.labels < 0
    assert 0 < int(hidden.sum()) < 16 and bool((components.banks.main.true_labels >= 0).all())
