"""Memory and disk space of a run: estimated from its configuration without allocating anything, and checked."""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
from torch import nn

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.decoded import frames_path
from covid_cmsf.clips.records import FLOW_MODALITIES
from covid_cmsf.devices import choose_device
from covid_cmsf.logs import format_bytes
from covid_cmsf.methods.base import TargetMethodConfig
from covid_cmsf.methods.memory_bank import MemoryBanks
from covid_cmsf.models import MLP, Encoder, HeadLayout, create_model
from covid_cmsf.models.heads import head_layout
from covid_cmsf.models.networks import make_predictor
from covid_cmsf.preflight import Problem, check_disk, check_memory
from covid_cmsf.training.config import TrainConfig
from covid_cmsf.training.data import resolve_workers, training_records
from covid_cmsf.views.dataset import MAX_SHIPPED_VIEWS
from covid_cmsf.views.loader import PREFETCH
from covid_cmsf.views.modalities import Modality, get_modality

SHARED_MEMORY = Path("/dev/shm")  # where workers put their batches, on Linux
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
    frames, size = config.views.view_shape(seen)
    encoder = meta_encoder(config.encoder, seen.num_channels)
    with torch.device("meta"):
        encoder.check_clip(torch.empty(1, seen.num_channels, frames, size, size))
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


def check_shared_memory(config: TrainConfig, *, frame_pixels: int) -> list[Problem]:
    """Check that the batches which workers prepare in advance fit into shared memory: else a worker dies of SIGBUS."""
    processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))  # of this machine: they share the memory
    if config.runtime.workers == 0 or not SHARED_MEMORY.is_dir():
        return []
    device = choose_device(config.runtime.device)
    workers = resolve_workers(config.runtime.workers, device)
    if not workers:
        return []
    per_process = config.batch_size // int(os.environ.get("WORLD_SIZE", "1"))
    batch = per_process * sample_bytes(config, frame_pixels=frame_pixels, deferred=device.type == "cuda")
    parts = min(workers, per_process)  # of a batch, one for each worker; those that are left work on the next batches
    in_flight = -(-workers * PREFETCH // parts) + 1  # and the one whose pieces are being joined or copied
    needed, free = processes * in_flight * batch, shutil.disk_usage(SHARED_MEMORY).free
    if needed <= free:
        return []
    return [
        Problem(
            f"{workers * processes} workers have {processes * in_flight} batches of {per_process} in flight, about "
            f"{format_bytes(needed)} in {SHARED_MEMORY}, which has {format_bytes(free)} free; give the container more "
            f"(`docker run --shm-size {-(-int(1.2 * needed) // 2**30)}g`, on Kubernetes an emptyDir of medium Memory), "
            "or set fewer runtime.workers (0: none, no shared memory) or a smaller batch_size"
        )
    ]


def sample_bytes(config: TrainConfig, *, frame_pixels: int, deferred: bool) -> int:
    """Return the bytes of one sample that workers hand over: its views as float32, or deferred, as uint8 frames.

    `frame_pixels` are those of the largest stored frame, to whose size a deferred batch is padded; 0: not known.
    """
    live = [guide.modality for guide in config.guides if guide.cache == "none"]
    in_target = {*([config.modality] if config.method.has_target else []), *live}
    total = 0
    for name in [config.modality, *in_target]:
        modality = get_modality(name, flow_style=config.views.flow_style)
        length, size = config.views.view_shape(modality)
        if not deferred:
            total += 4 * modality.num_channels * length * size**2
            continue
        shipped = frame_pixels or int(MAX_SHIPPED_VIEWS * size**2)
        pixels = shipped if shipped <= MAX_SHIPPED_VIEWS * size**2 else size**2
        channels = 1 if modality.spectrogram else 2 if modality.is_flow else 3
        total += channels * length * (2 if modality.frame_difference else 1) * pixels
    return total


def cache_bytes(config: TrainConfig, rgb_bytes: float, flow_bytes: float) -> float:
    """Return the memory that cached clips will take: at most `cache_gb`, and no more than there are decoded."""
    limit = config.runtime.cache_gb * 1e9
    decoded = decoded_bytes(config, rgb_bytes, flow_bytes)
    return min(limit, decoded) if decoded else limit  # images do not say their size


def decoded_bytes(config: TrainConfig, rgb_bytes: float, flow_bytes: float) -> float:
    """Return the size of all clips that the run reads, decoded."""
    stored = decoded_modalities(config)
    return rgb_bytes * ("rgb" in stored) + flow_bytes * len(stored.intersection(FLOW_MODALITIES))


def decoded_modalities(config: TrainConfig) -> set[str]:
    """Return the stored modalities that are decoded into a cache: of the run's views, not of cached guides."""
    live = [config.modality, *(guide.modality for guide in config.guides if guide.cache == "none")]
    return {get_modality(name).stored_modality for name in live}


def check_cache_dir(
    config: TrainConfig, clips: Clips, modalities: Sequence[Modality], rgb_bytes: float, flow_bytes: float
) -> list[Problem]:
    """Check that decoded clips fit onto the disk of `runtime.cache_dir`, beside those of them that are there already.

    `modalities` are all that the run reads; the bytes are those of its clips, decoded.
    """
    if not config.runtime.cache_dir:
        return []
    folder, records = Path(config.runtime.cache_dir), training_records(clips, config, modalities)
    try:
        paths = [frames_path(folder, clips, records, name) for name in decoded_modalities(config)]
    except ValueError as error:  # clips in memory
        return [Problem(str(error))]
    there = sum(path.stat().st_size for path in paths if path.is_file())
    decoded = decoded_bytes(config, rgb_bytes, flow_bytes)
    return check_disk(folder, max(0.0, decoded - there), "the decoded clips (runtime.cache_dir)")


def checkpoint_bytes(config: TrainConfig, footprint: Footprint, folder: Path) -> float:
    """Return the disk space that the run's checkpoints will still take: one more than are kept at a time."""
    runtime, kept = config.runtime, 0
    if runtime.keep_every_epochs:
        kept = min(runtime.keep, config.schedule.epochs // runtime.keep_every_epochs)
    there = len(list((folder / "checkpoints").glob("step-*.pt")))
    return footprint.checkpoint * max(1, kept + 3 - there)
