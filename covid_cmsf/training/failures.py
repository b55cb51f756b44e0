"""Non-finite losses: stop the run and save the failing step to a file.

`covid-cmsf replay FILE` computes that step again and reports where the first non-finite value appears.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from covid_cmsf.config import validate
from covid_cmsf.devices import choose_device
from covid_cmsf.methods.base import EmbeddedBatch
from covid_cmsf.methods.memory_bank import BankIndices
from covid_cmsf.models.checkpoints.formats.native import CHECKPOINT_FORMAT
from covid_cmsf.models.checkpoints.reader import read_checkpoint_file
from covid_cmsf.models.checkpoints.torch_file import write_torch_file
from covid_cmsf.models.precision import autocast
from covid_cmsf.training.batchnorm import forward_in_groups, resolve_groups
from covid_cmsf.training.build import TrainComponents, build_components
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.training.step import StepResult
from covid_cmsf.training.train_state import restore_
from covid_cmsf.views.batch import Batch

logger = logging.getLogger(__name__)


class NonFiniteLoss(RuntimeError):
    """The loss or a weight is NaN or infinite."""


def memory_advice(config: TrainConfig, *, world_size: int) -> str:
    """Return what a run holds and the settings by which it needs less memory; see `explained_memory`."""
    views, per_process = config.views, config.batch_size // world_size
    advice = [] if config.runtime.gradient_checkpointing else ["runtime.gradient_checkpointing=true (same result)"]
    if config.precision == "fp32":
        advice.append("precision=bf16")
    if per_process > 1:
        half = f"batch_size={config.batch_size // 2} optimizer.accumulate={2 * config.optimizer.accumulate}"
        advice.append(f"{half} (batch norm then sees half as many clips)")
    if any(guide.cache == "none" for guide in config.guides):
        advice.append("guides[].cache=views (no guide in the steps)")
    advice.append(f"shorter clips (views.length, now {views.length}), smaller crops (views.size, now {views.size})")
    advice.append("more GPUs (torchrun)")
    described = f"{per_process} clips per GPU, {config.encoder}, {config.precision}"
    return f"({described}); less is needed with {'; '.join(advice)}"


def save_failed_step(
    folder: Path,
    components: TrainComponents,
    batch: Batch,
    result: StepResult,
    values: dict[str, Any],
    dist: DistributedContext,
) -> NoReturn:
    """Write the inputs of the step, one file per process, and raise NonFiniteLoss."""
    step, embedded = values["progress"]["step"], result.embedded
    assert embedded is not None
    path = folder / f"failed-step-{step:08d}-process-{dist.rank}.pt"
    moved = batch.to(dist.device)
    kept = {
        name: getattr(embedded, name) for name in ("sources", "labels", "true_labels", "videos", "target", "guides")
    }
    kept |= {
        "bank_indices": None
        if embedded.bank_indices is None
        else [embedded.bank_indices.main, embedded.bank_indices.labeled]
    }
    kept["view"] = moved.online[values["config"]["modality"]]
    write_torch_file(path, {"format": CHECKPOINT_FORMAT, **values, "generator": result.generator_state, "failed": kept})
    names = [components.data.views.records[video].video_id for video in embedded.videos.tolist()]
    raise NonFiniteLoss(
        f"the loss of step {step} is {result.loss}; the run has stopped. `covid-cmsf replay {path}` computes that "
        f"step again and shows where it goes wrong. Videos in the batch: {', '.join(names[:8])}"
        + (", ..." if len(names) > 8 else "")
    )


def check_weights(network: nn.Module, step: int) -> None:
    """Raise NonFiniteLoss if weights are not finite although the loss still was."""
    bad = bad_weights(network)
    if bad:
        raise NonFiniteLoss(
            f"after step {step} there are weights that are not finite ({', '.join(bad[:4])}); the run has stopped and "
            "they are not saved: the same command resumes from the checkpoint before"
        )


def bad_weights(network: nn.Module) -> list[str]:
    """Return the names of weights with non-finite values."""
    return [name for name, weight in network.named_parameters() if not bool(weight.isfinite().all())]


@dataclass(frozen=True)
class Replay:
    """The replayed step: its loss, and the first layer (or the input) with a non-finite value."""

    step: int
    loss: float
    first_bad: str | None
    bad_weights: list[str]
    bad_entries: int  # of the bank


def replay(path: Path, *, device: str = "cpu") -> Replay:
    """Compute a saved step again, without changing any state."""
    values = dict(read_checkpoint_file(path).values)
    if "failed" not in values:
        raise ValueError(f"{path} is not a failed step; training writes failed-step-*.pt into the run folder")
    if values.get("format") != CHECKPOINT_FORMAT:
        raise ValueError(
            f"{path} has format {values.get('format')!r}, from another version of covid-cmsf; only format "
            f"{CHECKPOINT_FORMAT} is replayed"
        )
    config = validate(TrainConfig, values["config"], origin=str(path))
    if config.batch_norm.mode == "sync":  # over all processes of the run; this is one of them
        batch_norm = config.batch_norm.model_copy(update={"mode": "local"})
        config = config.model_copy(update={"batch_norm": batch_norm})
        logger.info("batch_norm.mode is sync: replayed with the batch statistics of this process's samples alone")
    alone = DistributedContext(0, 1, choose_device(device))
    components = build_components(config, alone)
    train_state = restore_(components, values, alone)
    failed = values["failed"]
    view = failed["view"].to(alone.device)
    groups = resolve_groups(config.batch_norm, world_size=len(values["random"]))
    found: list[str] = [] if bool(view.isfinite().all()) else ["the input view"]
    hooks = [
        module.register_forward_hook(_non_finite_hook(f"online.{name}", found))
        for name, module in components.network.named_modules()
        if name and not list(module.children())
    ]
    with torch.no_grad(), autocast(config.precision, alone.device):
        online = forward_in_groups(components.network, view, groups)
    for hook in hooks:
        hook.remove()
    embedded = _embedded_batch(to_device(failed, alone.device), online)
    losses = components.method.losses(embedded, components.banks, components.generator)
    bad_entries = 0 if components.banks is None else int((~components.banks.main.targets.isfinite()).any(1).sum())
    return Replay(
        train_state.step,
        float(losses.mean()),
        found[0] if found else None,
        bad_weights(components.network),
        bad_entries,
    )


def _embedded_batch(failed: dict[str, Any], online: Tensor) -> EmbeddedBatch:
    bank_indices = None if failed["bank_indices"] is None else BankIndices(*failed["bank_indices"])
    names = ("sources", "labels", "true_labels", "videos", "target", "guides")
    return EmbeddedBatch(online=online, bank_indices=bank_indices, **{name: failed[name] for name in names})


def to_device(value: Any, device: torch.device) -> Any:
    """Return nested dicts, lists and tuples with all their tensors on `device`."""
    if isinstance(value, Tensor):
        return value.to(device)
    if isinstance(value, dict):
        return {key: to_device(inner, device) for key, inner in value.items()}
    return [to_device(inner, device) for inner in value] if isinstance(value, list | tuple) else value


def _non_finite_hook(name: str, found: list[str]) -> Any:
    def hook(module: nn.Module, inputs: Any, output: Any) -> None:
        if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
            found.append(f"{name} ({type(module).__name__})")

    return hook
