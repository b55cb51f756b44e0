"""Clips to learn classes from: one random clip of a video, augmented, with its label."""

# T frames, C channels, H W pixels

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from covid_cmsf.clips.interface import Clips
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.clips.sampling import random_clip
from covid_cmsf.evaluation.recipes import training_augmentation
from covid_cmsf.evaluation.showing import Showing
from covid_cmsf.views.dataset import Key, frames_of, usable_frames
from covid_cmsf.views.draws import ViewDraw, draw_view
from covid_cmsf.views.geometry import cut
from covid_cmsf.views.loader import EpochSampler, start_worker


@dataclass(frozen=True)
class LabeledClip:
    """Cut frames, uint8 (T, C, H, W), and what is still to be done to them. With a `fault` there are none."""

    video: int
    label: int
    codes: Tensor | None = None
    draw: ViewDraw | None = None
    fault: str = ""


class LabeledClips(Dataset[LabeledClip]):
    """Key -> clip. Everything random follows from seed and key."""

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        showing: Showing,
        *,
        seed: int,
        augmentation: str = "coclr",
    ) -> None:
        self.clips, self.records, self.showing, self.seed = clips, records, showing, seed
        self.modality = showing.chosen()
        self.augmentation = training_augmentation(augmentation, showing.size)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: Key) -> LabeledClip:
        record = self.records[key.video]
        rng = np.random.default_rng([self.seed, key.epoch, key.position])
        try:
            usable = usable_frames(record, [self.modality])
            numbers = random_clip(usable, rng, length=self.showing.length, stride=self.showing.stride)
            frames = frames_of(self.modality, numbers, single=0)
            codes = self.clips.read_codes(record, self.modality.stored, frames)
        except (ValueError, OSError) as error:  # the caller lists it; nothing stands in for it
            return LabeledClip(key.video, record.label, fault=str(error) or type(error).__name__)
        draw = draw_view(self.augmentation, rng, height=codes.shape[-2], width=codes.shape[-1])
        return LabeledClip(key.video, record.label, cut(codes, draw.geometry, self.showing.size), draw)

    def finished(self, clip: LabeledClip, device: torch.device) -> Tensor:
        """What the encoder sees."""
        assert clip.codes is not None and clip.draw is not None
        return self.showing.finish(clip.codes.to(device), clip.draw, self.clips.flow_bound)


class ClipLoader:
    """Batches of labeled clips, epoch by epoch, by one set of workers; an incomplete last batch is left out."""

    def __init__(self, data: LabeledClips, *, batch_size: int, num_workers: int) -> None:
        self._sampler = EpochSampler(data, batch_size=batch_size, seed=data.seed)
        workers: dict[str, Any] = {}
        if num_workers:
            workers = {"persistent_workers": True, "multiprocessing_context": "spawn"}
        self._loader: DataLoader[Any] = DataLoader(
            data,
            batch_sampler=self._sampler,
            num_workers=num_workers,
            collate_fn=list,
            worker_init_fn=start_worker,
            **workers,
        )

    def epoch(self, epoch: int) -> Iterator[list[LabeledClip]]:
        """The batches of one epoch, in an order that follows from seed and epoch."""
        self._sampler.start_at(epoch)
        yield from self._loader
