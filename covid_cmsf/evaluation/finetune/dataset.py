"""Labeled training clips: one random, augmented clip per video and epoch."""

# T frames, C channels, H W pixels

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.clips.sampling import random_clip
from covid_cmsf.evaluation.features.protocol import CroppedClip, EvalProtocol
from covid_cmsf.evaluation.finetune.config import train_augmentation
from covid_cmsf.views.augment_params import AugmentParams, sample_augment_params
from covid_cmsf.views.dataset import SampleKey, num_usable_frames, required_frames
from covid_cmsf.views.loader import EpochSampler, init_worker, worker_start_method
from covid_cmsf.views.modalities import compensate_camera
from covid_cmsf.views.ops import crop_resize


@dataclass(frozen=True)
class ClipSample:
    """Cropped frames, uint8 (T, C, H, W), and the remaining augmentation. Both are None if there is an `error`."""

    video: int
    label: int
    raw: Tensor | None = None
    params: AugmentParams | None = None
    error: str = ""


class ClipDataset(Dataset[ClipSample]):
    """Map a key to a clip; all randomness depends on seed and key only."""

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        eval_protocol: EvalProtocol,
        *,
        seed: int,
        augmentation: str = "coclr",
    ) -> None:
        self.clips, self.records, self.eval_protocol, self.seed = clips, records, eval_protocol, seed
        self.modality = eval_protocol.resolve_modality()
        self.augmentation = train_augmentation(augmentation, eval_protocol.size)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: SampleKey) -> ClipSample:
        record = self.records[key.video]
        rng = np.random.default_rng([self.seed, key.epoch, key.position])
        try:
            usable = num_usable_frames(record, [self.modality])
            numbers = random_clip(usable, rng, length=self.eval_protocol.length, stride=self.eval_protocol.stride)
            frames = required_frames(self.modality, numbers, single=0)
            raw = self.clips.read_raw(record, self.modality.stored_modality, frames)
            raw = compensate_camera(raw, self.modality, levels=self.clips.flow_levels(record))
        except (ValueError, OSError) as error:  # reported as skipped, never replaced by another video
            return ClipSample(key.video, record.label, error=str(error) or type(error).__name__)
        params = sample_augment_params(self.augmentation, rng, height=raw.shape[-2], width=raw.shape[-1])
        resize, size = self.eval_protocol.resize, self.eval_protocol.size
        interpolation = "bilinear" if resize is None else resize.interpolation
        cropped = crop_resize(raw, params.geometry, size, interpolation=interpolation)
        return ClipSample(key.video, record.label, cropped, params)

    def to_views(self, clips: Sequence[ClipSample], device: torch.device) -> Tensor:
        """Return the encoder's inputs (B, C, T, H, W)."""
        cropped = []
        for clip in clips:
            assert clip.raw is not None and clip.params is not None
            cropped.append(CroppedClip(clip.raw, clip.params, self.clips.flow_levels(self.records[clip.video])))
        return self.eval_protocol.to_views(cropped, device)


class ClipLoader:
    """Batches of labeled clips with one set of workers for all epochs; an incomplete last batch is dropped.

    `batch_size` is per process: several have the samples of one process with `batch_size * world_size`.
    """

    def __init__(
        self, data: ClipDataset, *, batch_size: int, num_workers: int, rank: int = 0, world_size: int = 1
    ) -> None:
        self._sampler = EpochSampler(data, batch_size=batch_size, seed=data.seed, rank=rank, world_size=world_size)
        workers: dict[str, Any] = {}
        if num_workers:
            workers = {"persistent_workers": True, "multiprocessing_context": worker_start_method(num_workers)}
        self._loader: DataLoader[Any] = DataLoader(
            data,
            batch_sampler=self._sampler,
            num_workers=num_workers,
            collate_fn=list,
            worker_init_fn=init_worker,
            **workers,
        )

    def epoch(self, epoch: int) -> Iterator[list[ClipSample]]:
        """Yield the batches of an epoch; their order depends on seed and epoch."""
        self._sampler.start_at(epoch)
        yield from self._loader
