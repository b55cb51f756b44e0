"""Whose statistics batch norm uses: groups, shuffled targets, frozen ones."""

from pathlib import Path

import pytest
import torch
from torch import nn

from covid_cmsf.training.batchnorm import forward_in_groups, gather_targets, train_mode_
from covid_cmsf.training.build import build_components
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.run import run_training
from tests.training.factories import make_config, state

ALONE = DistributedContext(0, 1, torch.device("cpu"))


def network(*, batch_norm: bool) -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(6, 5), *([nn.BatchNorm1d(5)] if batch_norm else [])]
    return nn.Sequential(*layers)


def normalized(values: torch.Tensor) -> torch.Tensor:
    return (values - values.mean(0)) / (values.var(0, unbiased=False) + 1e-5).sqrt()


def targets(module: nn.Module, view: torch.Tensor, *, groups: int, shuffle: bool, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        return gather_targets(module, view, dist=ALONE, groups=groups, shuffle=shuffle, generator=generator)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_every_group_has_statistics_of_its_own(groups: int) -> None:
    view, module = torch.randn(8, 2, 3), network(batch_norm=True)
    raw = module[1](view.flatten(1))  # type: ignore[index]
    expected = torch.cat([normalized(group) for group in raw.chunk(groups)])
    assert torch.allclose(forward_in_groups(module, view, groups), expected, atol=1e-5)


@pytest.mark.parametrize("groups", [1, 2, 4])
def test_the_shuffle_is_undone(groups: int) -> None:
    view, module = torch.randn(8, 2, 3), network(batch_norm=False)
    for seed in range(5):
        assert torch.allclose(targets(module, view, groups=groups, shuffle=True, seed=seed), module(view), atol=1e-6)


def test_shuffled_targets_have_the_statistics_of_other_examples() -> None:
    view, module = torch.randn(8, 2, 3), network(batch_norm=True)
    raw = module[1](view.flatten(1))  # type: ignore[index]
    order = torch.randperm(8, generator=torch.Generator().manual_seed(3)).tolist()
    expected = torch.empty(8, 5)
    for half in (order[:4], order[4:]):
        expected[half] = normalized(raw[half])
    found = targets(module, view, groups=2, shuffle=True, seed=3)
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(found, targets(module, view, groups=2, shuffle=False), atol=1e-2)


def test_nothing_is_drawn_without_a_shuffle() -> None:
    generator = torch.Generator().manual_seed(0)
    before = generator.get_state()
    gather_targets(network(batch_norm=True), torch.randn(4, 6), dist=ALONE, generator=generator)
    assert torch.equal(generator.get_state(), before)


def test_frozen_batch_norm_keeps_its_statistics_and_learns_its_weights(clips: Path, tmp_path: Path) -> None:
    chosen = make_config(clips, batch_norm={"mode": "frozen"})
    before = build_components(chosen, ALONE).network.state_dict()
    run_training(chosen, tmp_path / "run")
    after = state(tmp_path / "run")
    same = {name: torch.equal(after[f"online.{name}"], tensor) for name, tensor in before.items()}
    running = [name for name in same if name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    assert len(running) == 12 and all(same[name] for name in running)
    assert not any(same[name] for name in same if name not in running)


def test_train_mode_sets_batch_norm_alone_to_eval() -> None:
    inner = nn.BatchNorm3d(2)
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(), nn.Sequential(inner))
    train_mode_(module, frozen=True)
    assert [layer.training for layer in (module[0], module[1], inner)] == [False, True, False]
    train_mode_(module, frozen=False)
    assert all(layer.training for layer in module.modules())


def test_what_this_machine_cannot_do_is_refused(clips: Path) -> None:
    with pytest.raises(ValueError, match="sync needs several processes, each with a GPU"):
        build_components(make_config(clips, batch_norm={"mode": "sync"}), ALONE)
    with pytest.raises(ValueError, match="groups imitates several processes in one"):
        build_components(make_config(clips, batch_norm={"groups": 2}), DistributedContext(0, 2, torch.device("cpu")))
