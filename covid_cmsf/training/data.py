"""The data of a run: its videos, the labels that a method may see, and the loader of their views."""

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.cached import CachedClips
from covid_cmsf.clips.decoded import DecodedClips
from covid_cmsf.clips.labels import (
    labels_from_list,
    noisy_labels,
    read_noisy_labels,
    sample_labeled_fraction,
    sample_name,
)
from covid_cmsf.clips.records import ClipRecord, get_column
from covid_cmsf.clips.shared_memory import LocalProcesses
from covid_cmsf.cores import available_cores
from covid_cmsf.logs import progress_bar
from covid_cmsf.training.config import LabelConfig, TrainConfig
from covid_cmsf.training.distributed import DistributedContext
from covid_cmsf.views.dataset import ViewDataset, usable_records
from covid_cmsf.views.loader import ViewLoader
from covid_cmsf.views.modalities import Modality, get_modality

CPU_WORKERS = 2  # of a run on a CPU that says nothing else


@dataclass(frozen=True)
class TrainData:
    """The videos of a run. `labels` (N,) are those that the method may see: -1 is hidden or unknown."""

    clips: Clips
    views: ViewDataset
    labels: Tensor
    num_classes: int

    def fingerprint(self) -> str:
        """Return a hash of the videos, their lengths, files and labels: a run resumes only on the same data.

        Files count by their hashes in the manifest, with which they are compared when they are read.
        """
        stored = sorted({modality.stored_modality for modality in self.views.modalities})
        names = ["video_id", "source", "label", "num_frames", "num_flow", *(f"{name}_sha256" for name in stored)]
        columns = [get_column(self.views.records, name) for name in names]
        entries = list(zip(*columns, self.labels.tolist(), strict=True))
        return hashlib.sha256(json.dumps(entries).encode()).hexdigest()


def open_data(
    config: TrainConfig,
    *,
    online: Sequence[str],
    target: Sequence[str],
    cached: Sequence[str] = (),
    clips: Clips | None = None,
    local: LocalProcesses | None = None,
) -> TrainData:
    """Open the clips of a run, unless given, for the modalities of online and target views and of cached guides.

    `local` are the processes of this machine, which share the memory for decoded clips.
    """
    clips = open_clips(config.clips, decoder=config.runtime.decoder) if clips is None else clips
    seen = [one for one in map(get_modality, (*online, *target, *cached)) if one.stored_modality in clips.modalities]
    check_modalities(clips, [*online, *target, *cached])
    records = training_records(clips, config, seen)
    needed = tuple(dict.fromkeys((*online, *target)))
    chosen = config.views.model_copy(update={"modalities": needed})
    stored = sorted({get_modality(name).stored_modality for name in needed})
    if config.runtime.cache_gb:
        gigabytes, local = config.runtime.cache_gb, local or LocalProcesses()
        with progress_bar("decoding clips into memory", -(-len(records) // local.count)) as advance:
            clips = CachedClips(clips, records, stored, gigabytes=gigabytes, on_video=advance, local=local)
    elif config.runtime.cache_dir:
        folder = Path(config.runtime.cache_dir)
        with progress_bar(f"decoding clips into {folder}", len(records) * len(stored)) as advance:
            clips = DecodedClips(clips, records, stored, folder=folder, on_video=advance)
    defer = config.runtime.device != "cpu" and torch.cuda.is_available()
    views = ViewDataset(clips, records, chosen, seed=config.seed, defer=defer, online=online, target=target)
    labels = visible_labels(views.records, config.labels)
    highest = max(*get_column(views.records, "label"), int(labels.max()))
    return TrainData(clips, views, labels, highest + 1)


def training_records(clips: Clips, config: TrainConfig, modalities: Sequence[Modality]) -> Sequence[ClipRecord]:
    """Return the videos of a run: of its split and subset, long enough for these modalities, and listed."""
    records = usable_records(clips.select(config.split, config.subset), modalities)
    if not len(records):
        names = ", ".join(modality.name for modality in modalities)
        raise ValueError(f"no video of {config.clips} has enough frames for modalities {names}")
    return select_listed(records, config.labels)


def check_modalities(clips: Clips, names: Sequence[str]) -> None:
    """Raise ValueError if a video modality is asked of a set of images."""
    moving = [name for name in names if not get_modality(name).single_frame]
    if clips.is_image and moving:
        raise ValueError(f"these are images, not videos: modality {moving[0]} needs several frames; use modality=frame")


def make_loader(data: TrainData, config: TrainConfig, dist: DistributedContext) -> ViewLoader:
    """Return the loader of this process's batches."""
    if config.batch_size % dist.world_size:
        raise ValueError(f"batch_size {config.batch_size} does not divide among {dist.world_size} processes")
    return ViewLoader(
        data.views,
        batch_size=config.batch_size // dist.world_size,
        num_workers=resolve_workers(config.runtime.workers, dist.device),
        rank=dist.rank,
        world_size=dist.world_size,
        repeat=config.repeat,
        pin_memory=dist.device.type == "cuda",
        num_epochs=config.schedule.epochs,
        multiple=config.optimizer.accumulate,
    )


def resolve_workers(
    workers: int | Literal["auto"] | None,
    device: torch.device | str,
    *,
    num_slots: int = 1,
    num_processes: int | None = None,
) -> int:
    """Return the number of worker processes; `auto` is this process's share of its cores, less one for itself.

    None is `auto` for a GPU, which is idle while it waits for data, and 2 for a CPU, which trains on those cores. The
    cores are shared with the stages in the other slots of a plan, and with the other training processes on this
    machine (default: those of torchrun).
    """
    if workers is None:
        workers = "auto" if torch.device(device).type == "cuda" else CPU_WORKERS
    if workers != "auto":
        return workers
    if num_processes is None:
        num_processes = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    return max(0, available_cores() // (num_slots * num_processes) - 1)


def select_listed(records: Sequence[ClipRecord], chosen: LabelConfig) -> Sequence[ClipRecord]:
    """Return the records that the label file lists: it replaces the list of samples, as in the official code."""
    if chosen.file is None:
        return records
    listed = read_noisy_labels(Path(chosen.file)).labels
    kept = [record for record in records if sample_name(record) in listed]
    if len(kept) < len(listed):
        missing = sorted(set(listed) - {sample_name(record) for record in kept})
        raise ValueError(
            f"{chosen.file} lists {len(missing)} names that are not in this subset, the first: {missing[0]}"
        )
    return kept


def visible_labels(records: Sequence[ClipRecord], chosen: LabelConfig) -> Tensor:
    """Return the labels (N,) that a method may see, -1 where hidden: noise first, then the labeled fraction."""
    if chosen.file is not None:
        listed = read_noisy_labels(Path(chosen.file)).labels
        labels = np.array([listed[sample_name(record)] for record in records], dtype=np.int64)
    else:
        labels = noisy_labels(records, rate=chosen.noise, seed=chosen.seed, stratified=chosen.stratified)
    if chosen.known is not None:
        labels = labels_from_list(records, labels, Path(chosen.known))
    elif chosen.fraction < 1:
        labels = sample_labeled_fraction(labels, fraction=chosen.fraction, seed=chosen.seed)
    return torch.from_numpy(labels)


def select_held_out(clips: Clips, config: TrainConfig) -> Sequence[ClipRecord]:
    """Return the records of `runtime.knn_subset`; without it of `val`, and of `test` if the split has no `val`.

    Whoever looks at the curve chooses by it, so that the videos of the final figure are the last choice.
    """
    has_val = config.split in clips.splits and "val" in clips.splits[config.split].values()
    return clips.select(config.split, config.runtime.knn_subset or ("val" if has_val else "test"))
