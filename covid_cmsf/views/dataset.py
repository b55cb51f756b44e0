"""The training data set: sample key -> two views of a video. All randomness is determined by seed and key.

Shapes: T frames, C channels, H x W pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.clips.records import ClipRecord, get_column, take_records
from covid_cmsf.clips.sampling import two_clips
from covid_cmsf.config import validate
from covid_cmsf.views.augment_params import AugmentParams, GeometryParams, sample_augment_params
from covid_cmsf.views.batch import Batch, Sample, Views, collate
from covid_cmsf.views.config import ViewConfig
from covid_cmsf.views.modalities import Modality, assemble
from covid_cmsf.views.ops import change_sound, crop_resize
from covid_cmsf.views.pipeline import finish_view
from covid_cmsf.views.presets import ViewSpec, get_preset, sample_view_specs

MAX_REPLACEMENTS = 10  # videos to try before giving up, if they can't be read
# Deferred frames are cropped and resized on the device, unless they have more pixels than this many views: then it is
# cheaper to do that before they are sent there. Frames of short edge 160 have twice the pixels of a view of 128.
MAX_SHIPPED_VIEWS = 3.0


@dataclass(frozen=True)
class SampleKey:
    """Identify a sample; `position` is its index in the epoch's global order, so that repeats of a video differ."""

    epoch: int
    position: int
    video: int


@dataclass(frozen=True)
class DrawnView:
    """What was drawn for one view: the preset's name, the frames of its clip, and the one that `frame` shows."""

    preset: str
    frame_indices: list[int]
    single_frame: int


class ViewDataset(Dataset[Sample]):
    """Two augmented views of each video, online and target, in one or more modalities.

    Args:
        clips: the clips, as returned by `open_clips`.
        records: the videos (default: those of `split` and `subset`, or all).
        config: clips and augmentation (default: the paper's, 32 frames of 128 pixels).
        split: name of a split of the clips.
        subset: train (default), test or val.
        modalities: rgb, flow, residual_flow, motion, residual_motion, rgbdiff, frame, audio; overrides the config, as
            do the next three.
        length: frames per clip.
        stride: temporal stride, in frames.
        size: height and width of a view, in pixels.
        seed: a sample is determined by the seed and its key.
        defer: crop, flip, color and normalize whole batches on the device (see `Batch.to`); for GPUs.
        online: modalities of the online view (default: all). Other modalities are neither decoded nor augmented;
            leaving one out does not change the others.
        target: modalities of the target view (default: all).

    Example:
        >>> clips = cc.open_clips("clips/ucf101")
        >>> data = cc.ViewDataset(clips, split="1", subset="train", modalities=("rgb", "flow"))
        >>> batch = next(cc.ViewLoader(data, batch_size=8).epoch(0))
        >>> batch.online["rgb"].shape, batch.target["flow"].shape
        (torch.Size([8, 3, 32, 128, 128]), torch.Size([8, 2, 32, 128, 128]))
    """

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord] | None = None,
        config: ViewConfig | None = None,
        *,
        split: str | None = None,
        subset: str | None = None,
        modalities: Sequence[str] | None = None,
        length: int | None = None,
        stride: int | None = None,
        size: int | None = None,
        seed: int = 0,
        defer: bool = False,
        online: Sequence[str] | None = None,
        target: Sequence[str] | None = None,
    ) -> None:
        changes = {"modalities": modalities, "length": length, "stride": stride, "size": size}
        config = _change_config(config or ViewConfig(), changes)
        if records is None:
            records = _select_records(clips, split, subset)
        elif split is not None or subset is not None:
            raise ValueError("give either the records or a split and subset, not both")
        self.clips, self.config, self.seed, self.defer = clips, config, seed, defer
        self.modalities = config.get_modalities()
        self._view_modalities = [
            [modality for modality in self.modalities if names is None or modality.name in names]
            for names in (online, target)
        ]
        missing = [modality.name for modality in self.modalities if modality.stored_modality not in clips.modalities]
        if missing:
            raise ValueError(
                f"these clips have {', '.join(clips.modalities)}; modality {missing[0]!r} can't be read from them"
            )
        if any(modality.is_flow and not modality.signed_x for modality in self.modalities):
            clips.check_flow_as_image()
        self.records = usable_records(records, self.modalities)
        if not self.records:
            raise ValueError(f"no video has enough frames for modalities {', '.join(config.modalities)}")
        sources = get_column(self.records, "source")
        number_of = {name: number for number, name in enumerate(sorted(set(sources)))}
        # (N,) index of each video's source; an array, as it is sent to every worker process
        self._sources = np.fromiter(map(number_of.__getitem__, sources), dtype=np.int32)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: SampleKey) -> Sample:
        rng = np.random.default_rng([self.seed, key.epoch, key.position])
        video, read_error = key.video, ""
        for _ in range(MAX_REPLACEMENTS):
            try:
                return self._make_sample(video, np.random.default_rng(rng.integers(2**63)), read_error)
            except (ValueError, OSError) as error:
                read_error = read_error or f"{self.records[video].video_id}: {error}"
                video = int(rng.integers(len(self.records)))
        raise RuntimeError(f"{MAX_REPLACEMENTS} videos in a row could not be read; the first: {read_error}")

    def collate_fn(self) -> Callable[[Sequence[Sample]], Batch]:
        """Return the function that makes a batch of samples, for a DataLoader."""
        return partial(collate, modalities=self.modalities, size=self.config.size, frame_size=self.config.frame_size)

    def _make_sample(self, video: int, rng: np.random.Generator, read_error: str) -> Sample:
        record = self.records[video]
        specs, frame_indices, single = self._draw_clips(record, rng)
        stored = self._read(record, frame_indices, single)
        views, params, levels = [], [], self.clips.flow_levels(record)
        for view, spec in enumerate(specs):
            modality_views, modality_params = self._make_view(
                stored[view], spec, rng, self._view_modalities[view], levels
            )
            views.append(modality_views)
            params.append(modality_params)
        source, label = int(self._sources[video]), record.label
        return Sample(tuple(views), video, source, label, levels, read_error, tuple(params) if self.defer else ())

    def _draw_clips(
        self, record: ClipRecord, rng: np.random.Generator
    ) -> tuple[tuple[ViewSpec, ViewSpec], list[list[int]], int]:
        """Return the specs of both views, the frames of their clips, and the position of the modality `frame`."""
        config = self.config
        specs = sample_view_specs(config.pairing, rng, num_clips=config.num_clips)
        lengths = {"length": config.length, "stride": config.stride}
        clips = two_clips(num_usable_frames(record, self.modalities), rng, pad_mode=config.pad_mode, **lengths)
        return specs, [clips[spec.clip] for spec in specs], int(rng.integers(config.length))

    def drawn_views(self, key: SampleKey) -> list[DrawnView]:
        """Return what is drawn for the views of a sample whose video can be read: (online, target)."""
        rng = np.random.default_rng([self.seed, key.epoch, key.position])
        record = self.records[key.video]
        specs, clips, single = self._draw_clips(record, np.random.default_rng(rng.integers(2**63)))
        return [DrawnView(spec.preset, clip, clip[single]) for spec, clip in zip(specs, clips, strict=True)]

    def _make_view(
        self, stored: Views, spec: ViewSpec, rng: np.random.Generator, wanted: Sequence[Modality], levels: FlowLevels
    ) -> tuple[Views, dict[str, AugmentParams]]:
        """Make one view in the wanted modalities; with `share_geometry`, all draw parameters from the same seed."""
        modality_views: Views = {}
        modality_params: dict[str, AugmentParams] = {}
        params_seed = rng.integers(2**63)
        for modality in self.modalities:
            if not self.config.share_geometry:
                params_seed = rng.integers(2**63)
            if modality not in wanted:
                continue
            raw = stored[modality.name]
            _, size = self.config.view_shape(modality)
            augmentation = get_preset(
                spec.preset, modality.kind, size=size, scale=self.config.crop, blur=self.config.blur
            )
            height, width = raw.shape[-2:]
            augment_params = sample_augment_params(
                augmentation, np.random.default_rng(params_seed), height=height, width=width
            )
            if augment_params.sound is not None:  # here also if the rest is deferred: the picture is small
                raw = change_sound(raw, augment_params.sound, hidden=round(255 * modality.mean[0]))
            if not self.defer:
                view = crop_resize(raw, augment_params.geometry, augmentation.size)
                raw = finish_view(view, augment_params, modality, levels=levels)
            elif height * width > MAX_SHIPPED_VIEWS * augmentation.size**2:
                raw = crop_resize(raw, augment_params.geometry, augmentation.size)
                whole = GeometryParams(0, 0, 1, 1, augment_params.geometry.flip)
                augment_params = replace(augment_params, geometry=whole)
            modality_views[modality.name], modality_params[modality.name] = raw, augment_params
        return modality_views, modality_params

    def _read(self, record: ClipRecord, frame_indices: list[list[int]], single: int) -> list[Views]:
        """Return the stored frames of each view; frames that several views or modalities need are decoded once."""
        wanted: dict[str, set[int]] = {}
        for one, in_view in zip(frame_indices, self._view_modalities, strict=True):
            for modality in in_view:
                wanted.setdefault(modality.stored_modality, set()).update(required_frames(modality, one, single=single))
        decoded: dict[str, tuple[dict[int, int], Tensor]] = {}
        for stored, frames in wanted.items():
            ordered = sorted(frames)
            position_of = {number: index for index, number in enumerate(ordered)}
            decoded[stored] = position_of, self.clips.read_raw(record, stored, ordered)
        levels = self.clips.flow_levels(record)
        return [
            {
                modality.name: assemble(
                    _gather_frames(*decoded[modality.stored_modality], required_frames(modality, one, single=single)),
                    modality,
                    levels=levels,
                )
                for modality in in_view
            }
            for one, in_view in zip(frame_indices, self._view_modalities, strict=True)
        ]


def _change_config(config: ViewConfig, changes: Mapping[str, object]) -> ViewConfig:
    given = {name: value for name, value in changes.items() if value is not None}
    return validate(ViewConfig, {**config.model_dump(), **given}, origin="ViewDataset") if given else config


def _select_records(clips: Clips, split: str | None, subset: str | None) -> Sequence[ClipRecord]:
    if split is not None:
        return clips.select(split, subset or "train")
    if subset is not None:
        raise ValueError(f"subset {subset!r} needs a split; the clips have {', '.join(clips.splits) or 'none'}")
    return clips.records


def num_usable_frames(record: ClipRecord, modalities: Sequence[Modality]) -> int:
    """Return the number of frame indices valid for all modalities: flow and frame differences have one frame less."""
    counts = [record.num_frames]
    counts += [record.num_flow for modality in modalities if modality.is_flow]
    counts += [record.num_frames - 1 for modality in modalities if modality.frame_difference]
    return min(counts)


def usable_records(records: Sequence[ClipRecord], modalities: Sequence[Modality]) -> Sequence[ClipRecord]:
    """Return the records with at least one frame index that is valid for all modalities."""
    num_frames, num_flow = (np.array(get_column(records, name), dtype=np.int64) for name in ("num_frames", "num_flow"))
    usable = num_frames >= (2 if any(modality.frame_difference for modality in modalities) else 1)
    if any(modality.is_flow for modality in modalities):
        usable &= num_flow >= 1
    return take_records(records, np.flatnonzero(usable).tolist())


def required_frames(modality: Modality, frame_indices: list[int], *, single: int) -> list[int]:
    """Return the stored frames that a modality needs; a single-frame modality uses `frame_indices[single]`."""
    if modality.single_frame:
        return [frame_indices[single]]
    if modality.frame_difference:
        return frame_indices + [number + 1 for number in frame_indices]
    if modality.spectrogram:
        return _without_gaps(frame_indices)
    return frame_indices


def _without_gaps(frame_indices: list[int]) -> list[int]:
    """Return the frames of a clip and those that its stride leaves out: [0, 3, 6] becomes [0, 1, ..., 6].

    A frame that padding repeats stands for as many frames as the others, so that a clip's length does not change.
    """
    if len(frame_indices) == 1:
        return frame_indices
    last = max(frame_indices)
    stride = max(1, *(after - before for before, after in pairwise(frame_indices)))
    filled = [min(number + step, last) for number in frame_indices[:-1] for step in range(stride)]
    return [*filled, frame_indices[-1]]


def _gather_frames(position_of: dict[int, int], frames: Tensor, frame_indices: list[int]) -> Tensor:
    wanted = [position_of[number] for number in frame_indices]
    if wanted == list(range(wanted[0], wanted[0] + len(wanted))):
        return frames[wanted[0] : wanted[0] + len(wanted)]  # a view, not a copy
    return frames[torch.tensor(wanted)]
