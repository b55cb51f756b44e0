"""Samples and batches: views by modality, with the ids of their videos.

Shapes: B batch, C channels, T frames, H x W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.views.augment_params import AugmentParams
from covid_cmsf.views.batch_augment import BatchAugment, augment_batch, plan_batch
from covid_cmsf.views.modalities import Modality

Views = dict[str, Tensor]  # {modality: (B, C, T, H, W)}, (B, C, H, W) for single frames


@dataclass(frozen=True)
class DeferredViews:
    """The frames of one modality, of all views that have it, and what is still to be done to them on the device.

    Both views are one batch of 2B clips, so that they take the kernel launches of one.
    """

    frames: Tensor  # uint8 (V * B, T, C, H, W), padded; not in the order of the samples
    plan: BatchAugment
    view_numbers: tuple[int, ...]  # the V views: 0 online, 1 target

    def apply(self) -> dict[int, Tensor]:
        """Return the views by number, made on the current device."""
        views = augment_batch(self.frames, self.plan).chunk(len(self.view_numbers))
        return dict(zip(self.view_numbers, views, strict=True))


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
    deferred: dict[str, DeferredViews] = field(default_factory=dict)  # by modality; `views` are empty before `to`

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
        made = {name: waiting.apply() for name, waiting in self.deferred.items()}
        views = tuple(
            {name: by_number[number] for name, by_number in made.items() if number in by_number}
            for number in range(len(self.views))
        )
        return replace(self, views=views, deferred={})

    def _map_tensors(self, function) -> "Batch":  # type: ignore[no-untyped-def]
        views = tuple({name: function(view) for name, view in pair.items()} for pair in self.views)
        deferred = {
            name: replace(
                waiting,
                frames=function(waiting.frames),
                plan=waiting.plan.with_tensors(function(waiting.plan.numbers), function(waiting.plan.rows)),
            )
            for name, waiting in self.deferred.items()
        }
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
    views: tuple[Views, ...]
    deferred: dict[str, DeferredViews] = {}
    if samples[0].params:
        views = tuple({} for _ in samples[0].views)
        for modality in modalities:
            numbers = tuple(number for number, view in enumerate(samples[0].views) if modality.name in view)
            if numbers:
                pixels = frame_size if modality.single_frame else size
                deferred[modality.name] = _defer(samples, modality, numbers, size=pixels)
    else:
        views = tuple(
            {name: torch.stack([sample.views[number][name] for sample in samples]) for name in view}
            for number, view in enumerate(samples[0].views)
        )
    read_errors = [sample.read_error for sample in samples if sample.read_error]
    return Batch(
        views=views,
        videos=torch.tensor([sample.video for sample in samples]),
        sources=torch.tensor([sample.source for sample in samples]),
        labels=torch.tensor([sample.label for sample in samples]),
        num_replaced=len(read_errors),
        read_error=read_errors[0] if read_errors else "",
        deferred=deferred,
    )


def _defer(samples: Sequence[Sample], modality: Modality, view_numbers: tuple[int, ...], *, size: int) -> DeferredViews:
    """Stack the clips of a modality: all samples of the first view, then all of the next."""
    both = [(sample, number) for number in view_numbers for sample in samples]
    frames, plan = plan_batch(
        [sample.views[number][modality.name] for sample, number in both],
        [sample.params[number][modality.name] for sample, number in both],
        modality,
        size=size,
        levels=[sample.levels for sample, _ in both],
    )
    return DeferredViews(frames, plan, view_numbers)
