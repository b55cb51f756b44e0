"""The state of a run: counters, and everything that the next step depends on as one mapping for checkpoints."""

import random
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from covid_cmsf.training.build import TrainComponents
from covid_cmsf.training.distributed import DistributedContext


@dataclass
class TrainState:
    """Counters. `epoch` and `batch` are the next to train; `step` counts batches since the start."""

    epoch: int = 0
    batch: int = 0
    step: int = 0
    loss_sum: float = 0.0  # since the last line of metrics
    loss_count: int = 0
    best_rank: float = 0.0  # highest effective rank so far
    seconds: float = 0.0  # spent in training


def stateful_modules(components: TrainComponents) -> dict[str, nn.Module | None]:
    """Return the modules whose tensors belong into a checkpoint, by name."""
    return {
        "online": components.network,
        "target": components.target,
        "banks": components.banks,
        "memory": components.memory,
        "method": components.method,
    }


def capture_state(
    components: TrainComponents, train_state: TrainState, config: dict[str, Any], dist: DistributedContext
) -> dict[str, Any]:
    """Return everything that a checkpoint holds. All processes must call it."""
    modules = stateful_modules(components)
    state = {
        f"{name}.{key}": tensor
        for name, module in modules.items()
        if module is not None
        for key, tensor in module.state_dict().items()
    }
    return {
        "encoder": components.metadata.model_dump(mode="json"),
        "state": state,
        "optimizer": components.optimizer.state_dict(),
        "scaler": components.scaler.state_dict(),
        "progress": asdict(train_state),
        "generator": components.generator.get_state(),
        "random": dist.gather_objects(get_rng_states()),
        "guides": {guide.column: guide.fingerprint for guide in components.guides},
        "videos": components.data.fingerprint(),
        "config": config,
    }


def restore_(components: TrainComponents, values: dict[str, Any], dist: DistributedContext) -> TrainState:
    """Restore the state that `capture_state` returned. Strict: a missing or unexpected tensor is an error."""
    state: dict[str, Any] = values["state"]
    modules = stateful_modules(components)
    for name, module in modules.items():
        own = {key.removeprefix(f"{name}."): tensor for key, tensor in state.items() if key.startswith(f"{name}.")}
        try:
            (nn.Module() if module is None else module).load_state_dict(own, strict=True)
        except RuntimeError as error:
            raise ValueError(f"the checkpoint does not fit this configuration: {error}") from None
    found = {guide.column: guide.fingerprint for guide in components.guides}
    if values["guides"] != found:
        raise ValueError("the weights of a guide have changed since this run began; it cannot be resumed")
    if values["videos"] != components.data.fingerprint():
        raise ValueError("the clips have changed since this run began; it cannot be resumed")
    load_optimizer_(components.optimizer, values["optimizer"])
    components.scaler.load_state_dict(values["scaler"])
    components.generator.set_state(values["generator"])
    if len(values["random"]) == dist.world_size:  # with another number of processes the random numbers differ
        set_rng_states(values["random"][dist.rank])
    return TrainState(**values["progress"])


def load_optimizer_(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the moments from the checkpoint; learning rate, decay and the like come from the configuration."""
    options = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, own in zip(optimizer.param_groups, options, strict=True):
        group.update(own)


def get_rng_states() -> dict[str, Any]:
    """Return the random states of Python, NumPy and PyTorch as plain values."""
    kind, keys, position, has_gauss, cached = np.random.get_state()
    version, numbers, gauss = random.getstate()
    return {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, cached],
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def set_rng_states(states: dict[str, Any]) -> None:
    """Set the random states that `get_rng_states` returned."""
    version, numbers, gauss = states["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = states["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
