"""Memory and disk space of a run: estimated from its configuration without allocating anything, and checked."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from covid_cmsf.devices import choose_device
from covid_cmsf.methods.base import TargetMethodConfig
from covid_cmsf.methods.memory_bank import MemoryBanks
from covid_cmsf.models import MLP, Encoder, HeadLayout, create_model
from covid_cmsf.models.heads import head_layout
from covid_cmsf.models.networks import make_predictor
from covid_cmsf.preflight import Problem, check_disk, check_memory
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.views.modalities import get_modality

OPTIMIZER_COPIES = {"adam": 2, "sgd": 1}


@dataclass(frozen=True)
class Footprint:
    """Bytes of the memory bank and of one checkpoint."""

    bank: float
    checkpoint: float


@cache
def meta_encoder(name: str, in_channels: int = 3) -> Encoder:
    """Return an encoder without weights, to ask for its sizes; ValueError if there is none of this name."""
    with torch.device("meta"):
        return create_model(name, in_channels=in_channels)


def estimate_footprint(config: TrainConfig) -> Footprint:
    """Return the sizes; ValueError for an unknown encoder or views that are too small for it.

    Heads are taken as configured: one that is reused from `init` may differ, as may the width of a guide's column.
    """
    seen = get_modality(config.modality, flow_style=config.views.flow_style)
    size = config.views.frame_size if seen.single_frame else config.views.size
    encoder = meta_encoder(config.encoder, seen.num_channels)
    with torch.device("meta"):
        encoder.check_clip(
            torch.empty(1, seen.num_channels, 1 if seen.single_frame else config.views.length, size, size)
        )
        projector = MLP(_projector_layout(config, encoder.num_features))
        method = config.method.build(num_classes=1, embedding_dim=1)
        predictor = make_predictor(projector, encoder) if method.has_predictor else None
        banks = None
        if isinstance(config.method, TargetMethodConfig):
            dim = projector.layout.sizes[-1]
            guides = {f"guide_{number}": dim for number in range(len(config.guides))}
            dims = {"target": dim, **guides, **dict.fromkeys(config.method.extra_columns, dim)}
            banks = MemoryBanks(config.method.bank_size, dims, labeled_size=config.method.second_bank_size)
    trained = sum(_num_bytes(module) for module in (encoder, projector, predictor) if module is not None)
    target = _num_bytes(encoder) + _num_bytes(projector) if method.has_target else 0
    bank = _num_bytes(banks) if banks is not None else 0
    return Footprint(bank, trained * (1 + OPTIMIZER_COPIES[config.optimizer.name]) + target + bank)


def _projector_layout(config: TrainConfig, num_features: int) -> HeadLayout:
    head = config.method.head
    if head is None:
        return HeadLayout(sizes=(num_features, 1))
    return head_layout(
        head.projector, num_features, embedding_size=head.embedding_size, output_batch_norm=head.output_batch_norm
    )


def _num_bytes(module: nn.Module) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in module.state_dict().values())


def check_space(config: TrainConfig, footprint: Footprint, cached: float, folder: Path | None) -> list[Problem]:
    """Check the memory for the bank and for `cached` bytes of clips, and the disk for checkpoints."""
    device = choose_device(config.runtime.device)
    on_gpu = torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else None
    bank_size = config.method.bank_size if isinstance(config.method, TargetMethodConfig) else 0
    problems = check_memory(
        footprint.bank, f"the {bank_size:,} entries of the memory bank (method.bank_size)", available=on_gpu
    )
    problems += check_memory(cached, f"the cached clips (runtime.cache_gb={config.runtime.cache_gb:g})")
    if folder is not None:
        problems += check_disk(folder, checkpoint_bytes(config, footprint, folder), "the run's checkpoints")
    return problems


def cache_bytes(config: TrainConfig, rgb_bytes: float, flow_bytes: float) -> float:
    """Return the memory that cached clips will take: at most `cache_gb`, and no more than there are decoded."""
    limit = config.runtime.cache_gb * 1e9
    live = [config.modality, *(guide.modality for guide in config.guides if guide.cache == "none")]
    stored = {get_modality(name).stored_modality for name in live}
    decoded = rgb_bytes * ("rgb" in stored) + flow_bytes * ("flow" in stored)
    return min(limit, decoded) if decoded else limit  # images do not say their size


def checkpoint_bytes(config: TrainConfig, footprint: Footprint, folder: Path) -> float:
    """Return the disk space that the run's checkpoints will still take: one more than are kept at a time."""
    runtime, kept = config.runtime, 0
    if runtime.keep_every_epochs:
        kept = min(runtime.keep, config.schedule.epochs // runtime.keep_every_epochs)
    there = len(list((folder / "checkpoints").glob("step-*.pt")))
    return footprint.checkpoint * max(1, kept + 3 - there)
