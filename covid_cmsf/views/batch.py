"""Samples and batches: views by modality, with the ids of their videos.

Shapes: B batch, C channels, T frames, H x W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.views.augment_params import AugmentParams
from covid_cmsf.views.batch_augment import BatchAugment, augment_batch, plan_batch
from covid_cmsf.views.modalities import Modality

Views = dict[str, Tensor]  # {modality: (B, C, T, H, W)}, (B, C, H, W) for single frames


@dataclass(frozen=True)
class Batch:
    """The input of a training step: views, and int64 ids of each sample.

    Example:
        >>> data = cc.ViewDataset(cc.open_clips("clips/ucf101"), modalities=("rgb",), length=4, size=32)
        >>> batch = next(cc.ViewLoader(data, batch_size=4).epoch(0)).to("cpu")
        >>> batch.online["rgb"].shape, batch.videos.shape
        (torch.Size([4, 3, 4, 32, 32]), torch.Size([4]))
    """

    views: tuple[Views, ...]  # (online, target)
    videos: Tensor  # (B,) index of the video in the data set
    sources: Tensor  # (B,) index of the source
    labels: Tensor  # (B,) -1 if unlabeled
    num_replaced: int = 0  # samples of other videos, in place of videos that could not be read
    read_error: str = ""  # the first of those errors
    deferred: tuple[dict[str, BatchAugment], ...] = ()  # per view: what is still to be done, on the device

    @property
    def online(self) -> Views:
        """The view for the online encoder."""
        return self.views[0]

    @property
    def target(self) -> Views:
        """The view for the target encoder and the guide."""
        return self.views[1]

    def to(self, device: torch.device | str) -> "Batch":
        """Move to another device and apply deferred augmentation there."""
        on_device = self._map_tensors(lambda tensor: tensor.to(device, non_blocking=True))
        return on_device.apply_deferred()

    def pin_memory(self) -> "Batch":
        """Copy to page-locked memory, from which transfers to a GPU are asynchronous. Called by the data loader."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def apply_deferred(self) -> "Batch":
        """Return the batch with deferred augmentation applied, on its current device."""
        if not self.deferred:
            return self
        views = tuple(
            {name: augment_batch(frames, plans[name]) for name, frames in view.items()}
            for view, plans in zip(self.views, self.deferred, strict=True)
        )
        return replace(self, views=views, deferred=())

    def _map_tensors(self, function) -> "Batch":  # type: ignore[no-untyped-def]
        views = tuple({name: function(view) for name, view in pair.items()} for pair in self.views)
        deferred = tuple(
            {name: plan.with_tensors(function(plan.numbers), function(plan.rows)) for name, plan in plans.items()}
            for plans in self.deferred
        )
        return replace(
            self,
            views=views,
            deferred=deferred,
            videos=function(self.videos),
            sources=function(self.sources),
            labels=function(self.labels),
        )


@dataclass(frozen=True)
class Sample:
    """One sample, before collation; fields as in `Batch`, for one video."""

    views: tuple[Views, ...]
    video: int
    source: int
    label: int
    levels: FlowLevels  # of the video's flow
    read_error: str = ""  # why the requested video was replaced by another
    params: tuple[dict[str, AugmentParams], ...] = ()


def collate(samples: Sequence[Sample], *, modalities: list[Modality], size: int, frame_size: int) -> Batch:
    """Stack samples into a batch; `size` and `frame_size` are the pixels of a view, if augmentation is deferred."""
    views, deferred = [], []
    for number, first in enumerate(samples[0].views):
        clips = {name: [sample.views[number][name] for sample in samples] for name in first}
        if not samples[0].params:
            views.append({name: torch.stack(rows) for name, rows in clips.items()})
            continue
        levels = [sample.levels for sample in samples]
        planned = {
            modality.name: plan_batch(
                clips[modality.name],
                [sample.params[number][modality.name] for sample in samples],
                modality,
                size=frame_size if modality.single_frame else size,
                levels=levels,
            )
            for modality in modalities
            if modality.name in clips
        }
        views.append({name: frames for name, (frames, _) in planned.items()})
        deferred.append({name: plan for name, (_, plan) in planned.items()})
    read_errors = [sample.read_error for sample in samples if sample.read_error]
    return Batch(
        views=tuple(views),
        videos=torch.tensor([sample.video for sample in samples]),
        sources=torch.tensor([sample.source for sample in samples]),
        labels=torch.tensor([sample.label for sample in samples]),
        num_replaced=len(read_errors),
        read_error=read_errors[0] if read_errors else "",
        deferred=tuple(deferred),
    )
