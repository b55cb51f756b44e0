"""A loss that isn't finite stops the run and leaves a file with which that step can be looked at again.

`covid-cmsf replay FILE` computes it once more and says where the first bad number appears.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from covid_cmsf.atomic import atomic_path
from covid_cmsf.config import validate
from covid_cmsf.methods.banks import OwnRows
from covid_cmsf.methods.method import Embedded
from covid_cmsf.models.speed import autocast
from covid_cmsf.models.weights.files import read_file
from covid_cmsf.training.batch_norm import in_groups
from covid_cmsf.training.parts import Parts, build_parts
from covid_cmsf.training.processes import Processes
from covid_cmsf.training.progress import restore_
from covid_cmsf.training.settings import TrainSettings
from covid_cmsf.training.step import Outcome
from covid_cmsf.views.batch import Batch


class NonFiniteLoss(RuntimeError):
    """The loss is not a number, or infinite."""


def keep_failed_step(
    folder: Path, parts: Parts, batch: Batch, outcome: Outcome, values: dict[str, Any], processes: Processes
) -> NoReturn:
    """Writes what the step worked with, one file a process, and stops."""
    step, embedded = values["progress"]["step"], outcome.embedded
    assert embedded is not None
    path = folder / f"failed-step-{step:08d}-process-{processes.rank}.pt"
    moved = batch.to(processes.device)
    kept = {
        name: getattr(embedded, name) for name in ("sources", "labels", "true_labels", "videos", "target", "guides")
    }
    kept |= {"rows": None if embedded.rows is None else [embedded.rows.everyone, embedded.rows.labeled]}
    kept["view"] = moved.online[values["settings"]["modality"]]
    with atomic_path(path) as temporary:
        torch.save({"format": 1, **values, "generator": outcome.draws, "failed": kept}, temporary)
    names = [parts.data.views.records[video].video_id for video in embedded.videos.tolist()]
    raise NonFiniteLoss(
        f"the loss of step {step} is {outcome.loss}; the run has stopped. `covid-cmsf replay {path}` computes that "
        f"step again and shows where it goes wrong. Videos in the batch: {', '.join(names[:8])}"
        + (", ..." if len(names) > 8 else "")
    )


def check_weights(network: nn.Module, step: int) -> None:
    """NonFiniteLoss when a bad gradient has spoilt the weights while the loss was still finite."""
    bad = bad_weights(network)
    if bad:
        raise NonFiniteLoss(
            f"after step {step} there are weights that are not finite ({', '.join(bad[:4])}); the run has stopped and "
            "they are not saved: the same command continues from the checkpoint before"
        )


def bad_weights(network: nn.Module) -> list[str]:
    """Names of weights with a number in them that is not finite."""
    return [name for name, weight in network.named_parameters() if not bool(weight.isfinite().all())]


@dataclass(frozen=True)
class Replay:
    """What a step computed: its loss, and the first part of the network (or the input) with a bad number in it."""

    step: int
    loss: float
    first_bad: str | None
    bad_weights: list[str]
    bad_rows: int  # of the bank


def replay(path: Path, *, device: str = "cpu") -> Replay:
    """Computes a kept step again, without changing anything."""
    values = dict(read_file(path).values)
    if "failed" not in values:
        raise ValueError(f"{path} is not a failed step; the engine writes failed-step-*.pt beside the checkpoints")
    settings = validate(TrainSettings, values["settings"], place=str(path))
    alone = Processes(0, 1, torch.device(device))
    parts = build_parts(settings, alone)
    progress = restore_(parts, values, alone)
    failed = values["failed"]
    view = failed["view"].to(device)
    found: list[str] = [] if bool(view.isfinite().all()) else ["the input view"]
    hooks = [
        module.register_forward_hook(_watcher(f"online.{name}", found))
        for name, module in parts.network.named_modules()
        if name and not list(module.children())
    ]
    with torch.no_grad(), autocast(settings.precision, alone.device):
        online = in_groups(parts.network, view, settings.batch_norm.groups)
    for hook in hooks:
        hook.remove()
    embedded = _embedded(failed, online)
    losses = parts.method.losses(embedded, parts.banks, parts.generator)
    rows = 0 if parts.banks is None else int((~parts.banks.everyone.rows("target").isfinite()).any(1).sum())
    return Replay(progress.step, float(losses.mean()), found[0] if found else None, bad_weights(parts.network), rows)


def _embedded(failed: dict[str, Any], online: Tensor) -> Embedded:
    rows = None if failed["rows"] is None else OwnRows(*failed["rows"])
    names = ("sources", "labels", "true_labels", "videos", "target", "guides")
    return Embedded(online=online, rows=rows, **{name: failed[name] for name in names})


def _watcher(name: str, found: list[str]) -> Any:
    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if not found and isinstance(output, Tensor) and not bool(output.isfinite().all()):
            found.append(f"{name} ({type(module).__name__})")

    return look
