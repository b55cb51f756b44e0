"""The data of a run: which videos, which of their labels a method may see, and the loader over their views."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from covid_cmsf.clips import open_clips
from covid_cmsf.clips.interface import Clips
from covid_cmsf.logs import progress_bar
from covid_cmsf.training.labels import listed_only, seen_labels
from covid_cmsf.training.processes import Processes
from covid_cmsf.training.settings import TrainSettings
from covid_cmsf.views.cache import CachedClips
from covid_cmsf.views.dataset import ViewDataset, usable_frames
from covid_cmsf.views.loader import ViewLoader
from covid_cmsf.views.modalities import modality


@dataclass(frozen=True)
class Data:
    """Videos of a run. `labels` (num_videos,) is what a method may see of them: -1 is hidden or unknown."""

    clips: Clips
    views: ViewDataset
    labels: Tensor
    num_classes: int

    def fingerprint(self) -> str:
        """Changes when a video is added, left out, cut or labeled otherwise: then numbers of videos mean others."""
        facts = [
            [one.video_id, one.source, one.label, one.num_frames, one.num_flow, seen]
            for one, seen in zip(self.views.records, self.labels.tolist(), strict=True)
        ]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def open_data(
    settings: TrainSettings, *, online: Sequence[str], target: Sequence[str], cached: Sequence[str] = ()
) -> Data:
    """`online` and `target` are the modalities that each view needs; those of `cached` guides pick the videos too."""
    clips = open_clips(settings.clips)
    seen = [one for one in map(modality, (*online, *target, *cached)) if one.stored in clips.modalities]
    check_still(clips, [*online, *target, *cached])
    records = [one for one in clips.select(settings.split, settings.part) if usable_frames(one, seen) >= 1]
    records = listed_only(records, settings.labels)
    needed = tuple(dict.fromkeys((*online, *target)))
    chosen = settings.views.model_copy(update={"modalities": needed})
    stored = sorted({modality(name).stored for name in needed})
    if settings.runtime.cache_gb:
        with progress_bar("decoding clips into memory", len(records)) as advance:
            clips = CachedClips(clips, records, stored, gigabytes=settings.runtime.cache_gb, on_video=advance)
    defer = settings.runtime.device != "cpu" and torch.cuda.is_available()
    views = ViewDataset(clips, records, chosen, seed=settings.seed, defer=defer, online=online, target=target)
    labels = seen_labels(views.records, settings.labels)
    highest = max(max(record.label for record in views.records), int(labels.max()))
    return Data(clips, views, labels, highest + 1)


def check_still(clips: Clips, names: Sequence[str]) -> None:
    """ValueError when images are to be seen as if they moved."""
    moving = [name for name in names if not modality(name).single_frame]
    if clips.still and moving:
        raise ValueError(f"these are images, not videos: modality {moving[0]} has nothing to see; use modality=frame")


def make_loader(data: Data, settings: TrainSettings, processes: Processes) -> ViewLoader:
    """Batches of this process's share."""
    if settings.batch_size % processes.count:
        raise ValueError(f"batch_size {settings.batch_size} does not divide among {processes.count} processes")
    return ViewLoader(
        data.views,
        batch_size=settings.batch_size // processes.count,
        num_workers=settings.runtime.workers,
        rank=processes.rank,
        world_size=processes.count,
        repeat=settings.repeat,
        pin_memory=processes.device.type == "cuda",
    )
