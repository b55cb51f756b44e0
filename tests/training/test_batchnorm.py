"""Whose statistics batch norm uses: groups, shuffled targets, frozen ones."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from covid_cmsf.config import find_config, load_config
from covid_cmsf.models import MLP, HeadLayout, Network, create_model
from covid_cmsf.training import build
from covid_cmsf.training.batchnorm import forward_in_groups, gather_targets, resolve_groups, train_mode_
from covid_cmsf.training.build import build_components
from covid_cmsf.training.config import BatchNormConfig, TrainConfig
from covid_cmsf.training.data import make_loader
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.loop import make_step_config
from covid_cmsf.training.run import run_training
from covid_cmsf.training.step import forward_backward
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


def test_frozen_batch_norm_does_not_freeze_new_heads(clips: Path, rgb_weights: Path, tmp_path: Path) -> None:
    method = {"name": "byol_asym", "bank_size": 16}
    config = make_config(clips, init=str(rgb_weights), batch_norm={"mode": "frozen"}, method=method)
    before = build_components(config, ALONE).network.state_dict()
    run_training(config, tmp_path / "run")
    after = state(tmp_path / "run")
    for network in ("online", "target"):
        means = [key for key in after if key.startswith(network) and key.endswith(("running_mean", "running_var"))]
        frozen = {key: torch.equal(after[key], before[key.removeprefix(f"{network}.")]) for key in means}
        assert all(frozen[key] for key in means if ".encoder." in key)
        heads = [key for key in means if ".encoder." not in key]
        assert len(heads) == (4 if network == "online" else 2) and not any(frozen[key] for key in heads)


def test_frozen_batch_norm_freezes_a_head_that_has_seen_data() -> None:
    head = HeadLayout(sizes=(32, 8, 4), batch_norm=True, output_batch_norm=True)
    old, new = MLP(head), MLP(head)
    old(torch.randn(6, 32))
    module = Network(create_model("toy"), old, predictor=MLP(HeadLayout(sizes=(4, 4), output_batch_norm=True)))
    train_mode_(module, frozen=True)
    norms = [layer.training for layer in module.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    assert norms == [False] * 4 + [False] * 2 + [True]  # encoder, projector with statistics, new predictor
    module.projector = new
    train_mode_(module, frozen=True)
    assert new[1].training and new[4].training and module.training
    train_mode_(module, frozen=False)
    assert all(layer.training for layer in module.modules())


def test_shuffled_batch_norm_in_one_process_really_shuffles(clips: Path) -> None:
    """Its targets are those of two groups, and equal neither an unshuffled batch nor one group's."""
    embeddings = {}
    for name, chosen in {
        "shuffled": {"shuffle": True},
        "grouped": {"shuffle": True, "groups": 2},
        "plain": {"shuffle": False},
    }.items():
        config = make_config(clips, precision="fp32", batch_norm=chosen, method={"name": "byol_asym", "bank_size": 16})
        components = build_components(config, ALONE)
        batch = next(make_loader(components.data, config, ALONE).epoch(0))
        forward_backward(components, batch, make_step_config(config), ALONE)
        assert components.banks is not None
        embeddings[name] = components.banks.main.targets.clone()
    assert torch.equal(embeddings["shuffled"], embeddings["grouped"])
    assert not torch.allclose(embeddings["shuffled"], embeddings["plain"], atol=1e-4)


@pytest.mark.parametrize(
    ("world_size", "chosen", "groups"),
    [
        (1, {"shuffle": True}, 2),
        (2, {"shuffle": True}, 1),
        (1, {"shuffle": True, "groups": 4}, 4),
        (1, {"shuffle": False}, 1),
        (1, {"shuffle": True, "mode": "frozen"}, 1),
    ],
)
def test_one_process_shuffles_over_two_groups(world_size: int, chosen: dict[str, Any], groups: int) -> None:
    assert resolve_groups(BatchNormConfig(**chosen), world_size=world_size) == groups


def test_the_headline_configuration_shuffles_in_one_process(clips: Path) -> None:
    config = load_config(TrainConfig, find_config("runs", "paper/video/infonce"), [f"clips={clips}"])
    assert config.batch_norm.shuffle and make_step_config(config).batch_norm.groups == 2
    with pytest.raises(ValueError, match="batch_size 5 is odd: batch_norm.shuffle needs two equal groups"):
        make_config(clips, batch_size=5, batch_norm={"shuffle": True})


def test_what_this_machine_cannot_do_is_refused_before_clips_are_decoded(clips: Path, tmp_path: Path) -> None:
    runtime = {"cache_dir": str(tmp_path / "decoded")}
    with pytest.raises(ValueError, match="sync needs several processes, each with a GPU"):
        build_components(make_config(clips, batch_norm={"mode": "sync"}, runtime=runtime), ALONE)
    assert not (tmp_path / "decoded").exists()
    with pytest.raises(ValueError, match="groups imitates several processes in one"):
        build_components(make_config(clips, batch_norm={"groups": 2}), DistributedContext(0, 2, torch.device("cpu")))


@pytest.mark.parametrize("world_size", [2, 3])
def test_each_process_receives_its_samples_of_the_shuffled_batch(
    world_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    views, order = torch.randn(4 * world_size, 3), torch.randperm(4 * world_size)
    mailbox: dict[tuple[int, int], torch.Tensor] = {}
    everybody = threading.Barrier(world_size)
    rank = threading.local()

    def all_to_all_single(
        incoming: torch.Tensor, outgoing: torch.Tensor, output_split_sizes: list[int], input_split_sizes: list[int]
    ) -> None:
        for receiver, part in enumerate(outgoing.split(input_split_sizes)):
            mailbox[rank.number, receiver] = part
        everybody.wait(timeout=60)
        received = [mailbox[sender, rank.number] for sender in range(world_size)]
        assert [len(part) for part in received] == output_split_sizes
        incoming.copy_(torch.cat(received))

    monkeypatch.setattr(torch.distributed, "all_to_all_single", all_to_all_single)

    def exchange(number: int) -> torch.Tensor:
        rank.number = number
        own = slice(4 * number, 4 * number + 4)
        return DistributedContext(number, world_size, torch.device("cpu")).exchange(views[own], order)

    with ThreadPoolExecutor(world_size) as pool:
        assert torch.equal(torch.cat(list(pool.map(exchange, range(world_size)))), views[order])


@pytest.mark.parametrize(("mode", "converted"), [("auto", False), ("local", False), ("sync", True)])
def test_several_gpus_share_statistics_only_if_asked_to(
    mode: str, converted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = make_config(Path("clips"), batch_norm={"mode": mode})
    network = Network(create_model(config.encoder), MLP(HeadLayout(sizes=(32, 8), batch_norm=True)))
    monkeypatch.setattr(Network, "to", lambda module, device: module)
    gpus = DistributedContext(0, 2, torch.device("cuda", 0))
    prepared, _ = build._prepare_networks(network, None, config, gpus)
    assert any(isinstance(module, nn.SyncBatchNorm) for module in prepared.modules()) == converted
