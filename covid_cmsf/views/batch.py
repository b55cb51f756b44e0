"""Samples and batches: views by modality, with the ids of their videos.

Shapes: B batch, C channels, T frames, H x W pixels.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.devices import move
from covid_cmsf.views.augment_params import AugmentParams
from covid_cmsf.views.batch_augment import BatchAugment, augment_batches, empty_clips, plan_batch
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

    def copy_to(self, device: torch.device | str) -> "DeferredViews":
        """Copy to another device."""
        return replace(self, frames=move(self.frames, device), plan=self.plan.copy_to(device))

    def by_number(self, views: Tensor) -> dict[int, Tensor]:
        """Return the views (V * B, ...) that were made of the frames by their numbers."""
        return dict(zip(self.view_numbers, views.chunk(len(self.view_numbers)), strict=True))


@dataclass(frozen=True)
class SplitViews:
    """`DeferredViews` whose frames are still in the pieces that several workers made."""

    pieces: tuple[Tensor, ...]  # uint8 (n, T, C, H, W)
    places: Tensor  # int64, of the clips of all pieces: their place in the batch
    plan: BatchAugment
    view_numbers: tuple[int, ...]

    def copy_to(self, device: torch.device | str) -> DeferredViews:
        """Copy each piece as it is, and put its clips into their places on the device.

        Copied there directly, the clips of a smaller piece would leave gaps between their rows: PyTorch makes such a
        source contiguous in memory that is not pinned, and waits for the copy.
        """
        shape = (len(self.places), *self.pieces[0].shape[1:3], *map(max, *(piece.shape[3:] for piece in self.pieces)))
        frames = empty_clips(shape, like=self.pieces[0], device=device)
        places = move(self.places, device).split([len(piece) for piece in self.pieces])
        for piece, own in zip(self.pieces, places, strict=True):
            part = frames[..., : piece.shape[3], : piece.shape[4]]
            part.index_copy_(0, own, move(piece, device))  # freed at once: room for the next
        return DeferredViews(frames, self.plan.copy_to(device), self.view_numbers)


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
    deferred: Mapping[str, DeferredViews | SplitViews] = field(default_factory=dict)  # by modality; see `to`

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
        return self.copy_to(device).apply_deferred()

    def copy_to(self, device: torch.device | str) -> "Batch":
        """Copy to another device; deferred augmentation stays deferred."""
        deferred = {name: waiting.copy_to(device) for name, waiting in self.deferred.items()}
        rest = replace(self, deferred={})._map_tensors(lambda tensor: move(tensor, device))
        return replace(rest, deferred=deferred)

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Tell the allocator that `stream` uses these tensors too: it gives their memory away only after that."""

        def record(tensor: Tensor) -> Tensor:
            tensor.record_stream(stream)
            return tensor

        self._map_tensors(record)

    def pin_memory(self) -> "Batch":
        """Copy to page-locked memory, from which transfers to a GPU are asynchronous. Called by the data loader."""
        return self._map_tensors(lambda tensor: tensor.pin_memory())

    def apply_deferred(self) -> "Batch":
        """Return the batch with deferred augmentation applied, on the device to which it was copied."""
        if not self.deferred:
            return self
        joined = _joined(self.deferred)
        augmented = augment_batches([(waiting.frames, waiting.plan) for waiting in joined.values()])
        made = {name: joined[name].by_number(one) for name, one in zip(joined, augmented, strict=True)}
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
            for name, waiting in _joined(self.deferred).items()
        }
        return replace(
            self,
            views=views,
            deferred=deferred,
            videos=function(self.videos),
            sources=function(self.sources),
            labels=function(self.labels),
        )


def _joined(deferred: Mapping[str, DeferredViews | SplitViews]) -> dict[str, DeferredViews]:
    return {name: one.copy_to("cpu") if isinstance(one, SplitViews) else one for name, one in deferred.items()}


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


def copied_aside(batches: Iterable[Batch], device: torch.device) -> Iterator[Batch]:
    """Yield the batches on `device`; a GPU copies on a stream of its own, beside what is left of the step before.

    Python arrives here when it has launched the backward pass of that step, which the copy does not wait for.
    """
    if device.type != "cuda":
        yield from batches
        return
    side = torch.cuda.Stream(device)
    for batch in batches:
        with torch.cuda.stream(side):
            moved = batch.copy_to(device)
        stream = torch.cuda.current_stream(device)
        stream.wait_stream(side)
        moved.record_stream(stream)
        yield moved
