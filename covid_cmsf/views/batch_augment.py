"""The operations that make the views of a whole batch on the device, in the order of `pipeline`.

Workers ship decoded uint8 frames and one row of numbers per clip (`plan_batch`); the device does the rest
(`augment_batch`). Clips whose colors change come first, sorted by how many blends (brightness, contrast, saturation)
come before their change of hue: each operation then runs once, on consecutive clips, whatever orders were drawn.

Shapes: B batch, T frames, C channels, H x W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.devices import move, send
from covid_cmsf.views import batch_ops
from covid_cmsf.views.augment_params import AugmentParams, ColorJitterParams
from covid_cmsf.views.modalities import Modality
from covid_cmsf.views.ops import LUMA, blur_radius, crop_box

NUM_BLENDS = 3  # brightness, contrast, saturation; each may come before or after the hue
HUE = 3  # its number in `ColorJitterParams.order`
SPANS, SCALE, SHIFT = slice(0, 10), slice(10, 13), slice(13, 16)  # columns of `numbers`
BLENDS, HUE_SHIFT, GRAY = slice(16, 34), 34, slice(35, 38)
SIGMA, RADIUS, NUM_COLUMNS = 38, 39, 40


@dataclass(frozen=True)
class BatchAugment:
    """What is done to the clips of a batch, in one modality. Clips are in the order in which they were stacked."""

    modality: Modality
    size: int  # pixels of a view
    hue_places: tuple[int, ...]  # per clip with changed colors, descending: number of blends before the hue
    num_gray: int
    num_blurred: int
    numbers: Tensor  # (B, NUM_COLUMNS) float
    rows: Tensor  # int64: (B,) place of each sample among the stacked clips, then gray clips, then blurred ones

    @property
    def changes_colors(self) -> bool:
        """Whether the colors of any clip change."""
        return bool(self.hue_places or self.num_gray or self.num_blurred)

    def with_tensors(self, numbers: Tensor, rows: Tensor) -> "BatchAugment":
        """Return the same with these tensors, on another device."""
        return replace(self, numbers=numbers, rows=rows)

    def copy_to(self, device: torch.device | str) -> "BatchAugment":
        """Copy to another device."""
        return self.with_tensors(move(self.numbers, device), move(self.rows, device))


def plan_batch(
    clips: Sequence[Tensor],
    params: Sequence[AugmentParams],
    modality: Modality,
    *,
    size: int,
    levels: Sequence[FlowLevels],
    cropped: bool = False,
) -> tuple[Tensor, BatchAugment]:
    """Stack uint8 clips (T, C, H, W) of any sizes, padded, and return what is to be done to them.

    `cropped` clips are cropped and resized already, but not flipped.
    """
    order = sorted(range(len(clips)), key=lambda row: -_hue_place(params[row], modality))
    frames = _stack_padded([clips[row] for row in order])
    chosen = [params[row] for row in order]
    numbers = np.zeros((len(order), NUM_COLUMNS), np.float32)
    for values, row, one in zip(numbers, order, chosen, strict=True):
        shape = tuple(clips[row].shape[2:])
        box = (0, shape[0], 0, shape[1]) if cropped else crop_box(one.geometry, *shape)
        _fill_row(values, one, modality, box=box, size=size, levels=levels[row])
    gray = [row for row, one in enumerate(chosen) if modality.has_color and one.gray_channel is not None]
    blurred = [row for row, one in enumerate(chosen) if modality.has_color and one.blur_sigma is not None]
    places = (_hue_place(one, modality) for one in chosen)
    return frames, BatchAugment(
        modality=modality,
        size=size,
        hue_places=tuple(place for place in places if place >= 0),
        num_gray=len(gray),
        num_blurred=len(blurred),
        numbers=torch.from_numpy(numbers),
        rows=torch.tensor([*np.argsort(order), *gray, *blurred]),
    )


def _stack_padded(clips: Sequence[Tensor]) -> Tensor:
    """Stack clips (T, C, H, W) of any height and width to (B, T, C, H, W), in the memory layout of the first."""
    height, width = (max(clip.shape[dim] for clip in clips) for dim in (2, 3))
    stacked = empty_clips((len(clips), *clips[0].shape[:2], height, width), like=clips[0])
    for row, clip in zip(stacked, clips, strict=True):
        row[..., : clip.shape[2], : clip.shape[3]] = clip
    return stacked


def empty_clips(shape: tuple[int, ...], *, like: Tensor, device: torch.device | str = "cpu") -> Tensor:
    """Return black clips (B, T, C, H, W) in the memory layout of another one, (..., C, H, W)."""
    if like.stride(-3) != 1:
        return torch.zeros(shape, dtype=torch.uint8, device=device)
    batch, num_frames, channels, height, width = shape  # decoded RGB is channels-last
    stored = torch.zeros(batch, num_frames, height, width, channels, dtype=torch.uint8, device=device)
    return stored.permute(0, 1, 4, 2, 3)


def _hue_place(params: AugmentParams, modality: Modality) -> int:
    """Return how many blends come before the change of hue; -1 if colors do not change."""
    jitter = params.color_jitter
    return jitter.order.index(HUE) if jitter is not None and modality.has_color else -1


def _fill_row(
    values: np.ndarray,
    params: AugmentParams,
    modality: Modality,
    *,
    box: tuple[int, int, int, int],
    size: int,
    levels: FlowLevels,
) -> None:
    top, bottom, left, right = box
    flip = params.geometry.flip
    values[SPANS] = (
        *batch_ops.axis_span(top, bottom - top, flip=False, size=size),
        *batch_ops.axis_span(left, right - left, flip=flip, size=size),
    )
    mean, std = np.array(modality.mean), np.array(modality.std)
    if modality.signed_x:
        sign = np.array([-1.0 if flip else 1.0, 1.0])  # a flip negates horizontal motion
        scale, shift = sign * levels.step / std, (sign * levels.offset - mean) / std
    else:
        scale, shift = 1 / std, -mean / std
    values[SCALE][: len(scale)], values[SHIFT][: len(shift)] = scale, shift
    if not modality.has_color:
        return
    if params.color_jitter is not None:
        values[BLENDS], values[HUE_SHIFT] = _blends(params.color_jitter).ravel(), params.color_jitter.hue
    if params.gray_channel is not None:
        values[GRAY] = LUMA if params.gray_channel < 0 else np.eye(3)[params.gray_channel]
    if params.blur_sigma is not None:
        values[SIGMA], values[RADIUS] = params.blur_sigma, blur_radius(params.blur_sigma, size - 1)


def _blends(jitter: ColorJitterParams) -> np.ndarray:
    """Return (factor, share of the luma, share of the mean luma) of up to 3 blends before the hue, and 3 after it."""
    values = np.zeros((2, NUM_BLENDS, 3), np.float32)
    hue_place = jitter.order.index(HUE)
    rows = {0: (jitter.brightness, 0, 0), 1: (jitter.contrast, 0, 1), 2: (jitter.saturation, 1, 0)}
    for place, operation in enumerate(jitter.order):
        if place < hue_place:
            values[0, place] = rows[operation]
        elif place > hue_place:
            values[1, place - hue_place - 1] = rows[operation]
    return values


def augment_batch(frames: Tensor, plan: BatchAugment) -> Tensor:
    """Make views (B, C, T, size, size), or (B, C, size, size) of single frames, of stacked uint8 (B, T, C, H, W)."""
    return augment_batches([(frames, plan)])[0]


def augment_batches(parts: Sequence[tuple[Tensor, BatchAugment]]) -> list[Tensor]:
    """Make the views of several modalities, as `augment_batch` does.

    The colors of those whose clips have one shape (RGB, and flow as an image) are changed together: in the kernel
    launches of one.
    """
    clips = [_crop(frames, plan) for frames, plan in parts]
    plans = [plan for _, plan in parts]
    same_shape: dict[tuple[int, ...], list[int]] = {}
    for number, plan in enumerate(plans):
        if plan.changes_colors:
            same_shape.setdefault(tuple(clips[number].shape[1:]), []).append(number)
    for numbers in same_shape.values():
        if len(numbers) == 1:
            _change_colors_(clips[numbers[0]], plans[numbers[0]])
            continue
        joined, places = _join([plans[number] for number in numbers], clips[numbers[0]].device)
        together = clips[numbers[0]].new_empty(len(joined.numbers), *clips[numbers[0]].shape[1:])
        for number, place in zip(numbers, places, strict=True):
            together.index_copy_(0, place, clips[number])
            clips[number] = together[:0]  # its memory is free again
        _change_colors_(together, joined)
        for number, place in zip(numbers, places, strict=True):
            clips[number] = together.index_select(0, place)
    return [_finish(one, plan) for one, plan in zip(clips, plans, strict=True)]


def _join(plans: Sequence[BatchAugment], device: torch.device) -> tuple[BatchAugment, list[Tensor]]:
    """Return one plan for the colors of all clips, and the places (B,) of each plan's clips among them."""
    counts = [len(plan.numbers) for plan in plans]
    hue_places = [
        place for plan in plans for place in (*plan.hue_places, *[-1] * (len(plan.numbers) - len(plan.hue_places)))
    ]
    order = sorted(range(len(hue_places)), key=lambda clip: -hue_places[clip])
    both = send(torch.stack([torch.tensor(order), torch.tensor(order).argsort()]), device)
    places = list(both[1].split(counts))
    gray, blurred = [], []
    for plan, place in zip(plans, places, strict=True):
        rows = place.index_select(0, plan.rows[len(plan.numbers) :]).split([plan.num_gray, plan.num_blurred])
        gray.append(rows[0])
        blurred.append(rows[1])
    joined = BatchAugment(
        modality=plans[0].modality,
        size=plans[0].size,
        hue_places=tuple(hue_places[clip] for clip in order if hue_places[clip] >= 0),
        num_gray=sum(plan.num_gray for plan in plans),
        num_blurred=sum(plan.num_blurred for plan in plans),
        numbers=torch.cat([plan.numbers for plan in plans]).index_select(0, both[0]),
        rows=torch.cat([both[0], *gray, *blurred]),
    )
    return joined, places


def _crop(frames: Tensor, plan: BatchAugment) -> Tensor:
    """Crop, flip and resize to float (B, T, C, size, size): images 0..1, flow in levels."""
    modality = plan.modality
    value_scale = 1 if modality.signed_x else 1 / 255
    clips = batch_ops.crop_resize(frames, plan.numbers[:, SPANS].view(-1, 2, 5), plan.size, value_scale=value_scale)
    if modality.is_flow and not modality.signed_x:  # an image (128, y, x)
        constant = torch.full_like(clips[:, :, :1], 128 / 255)
        clips = torch.cat([constant, clips[:, :, 1:], clips[:, :, :1]], dim=2)
    return clips


def _change_colors_(clips: Tensor, plan: BatchAugment) -> None:
    """Apply color jitter, gray and blur, in place."""
    _jitter_(clips, plan)
    gray_rows, blurred_rows = plan.rows[len(clips) :].split([plan.num_gray, plan.num_blurred])
    if plan.num_gray:
        weights = plan.numbers.index_select(0, gray_rows)[:, GRAY]
        clips.index_copy_(0, gray_rows, batch_ops.gray(clips.index_select(0, gray_rows), weights))
    if plan.num_blurred:
        sigmas, radii = plan.numbers.index_select(0, blurred_rows)[:, SIGMA : RADIUS + 1].unbind(1)
        clips.index_copy_(0, blurred_rows, batch_ops.blur(clips.index_select(0, blurred_rows), sigmas, radii))


def _finish(clips: Tensor, plan: BatchAugment) -> Tensor:
    """Difference, normalization, and the order of the samples."""
    modality, batch = plan.modality, len(clips)
    if modality.frame_difference:
        earlier, later = clips.chunk(2, dim=1)
        clips = later - earlier
    scale, shift = (
        plan.numbers[:, columns].view(batch, 1, 3, 1, 1)[:, :, : modality.num_channels] for columns in (SCALE, SHIFT)
    )
    clips = torch.addcmul(shift, clips, scale)
    if plan.hue_places:  # only then were samples reordered
        clips = clips.index_select(0, plan.rows[:batch])
    return clips[:, 0] if modality.is_image else clips.transpose(1, 2)


def _jitter_(clips: Tensor, plan: BatchAugment) -> None:
    """Apply brightness, contrast, saturation and hue in each clip's drawn order, in place."""
    count = len(plan.hue_places)
    if not count:
        return
    blends = plan.numbers[:, BLENDS].view(-1, 2, NUM_BLENDS, 3)
    for number in range(NUM_BLENDS):
        last = sum(place > number for place in plan.hue_places)
        if last:
            batch_ops.blend_(clips[:last], *blends[:last, 0, number].unbind(1))
    batch_ops.hue_(clips[:count], plan.numbers[:count, HUE_SHIFT])
    for number in range(NUM_BLENDS):
        first = sum(NUM_BLENDS - place <= number for place in plan.hue_places)
        if first < count:
            batch_ops.blend_(clips[first:count], *blends[first:count, 1, number].unbind(1))
