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

    def with_tensors(self, numbers: Tensor, rows: Tensor) -> "BatchAugment":
        """Return the same with these tensors, on another device."""
        return replace(self, numbers=numbers, rows=rows)


def plan_batch(
    clips: Sequence[Tensor],
    params: Sequence[AugmentParams],
    modality: Modality,
    *,
    size: int,
    levels: Sequence[FlowLevels],
) -> tuple[Tensor, BatchAugment]:
    """Stack uint8 clips (T, C, H, W) of any sizes, padded, and return what is to be done to them."""
    order = sorted(range(len(clips)), key=lambda row: -_hue_place(params[row], modality))
    frames = _stack_padded([clips[row] for row in order])
    chosen = [params[row] for row in order]
    numbers = np.zeros((len(order), NUM_COLUMNS), np.float32)
    for values, row, one in zip(numbers, order, chosen, strict=True):
        _fill_row(values, one, modality, shape=tuple(clips[row].shape[2:]), size=size, levels=levels[row])
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
    num_frames, channels, *_ = clips[0].shape
    height, width = (max(clip.shape[dim] for clip in clips) for dim in (2, 3))
    if clips[0].stride(1) == 1:  # decoded RGB is channels-last
        stacked = torch.zeros(len(clips), num_frames, height, width, channels, dtype=torch.uint8).permute(0, 1, 4, 2, 3)
    else:
        stacked = torch.zeros(len(clips), num_frames, channels, height, width, dtype=torch.uint8)
    for row, clip in zip(stacked, clips, strict=True):
        row[..., : clip.shape[2], : clip.shape[3]] = clip
    return stacked


def _hue_place(params: AugmentParams, modality: Modality) -> int:
    """Return how many blends come before the change of hue; -1 if colors do not change."""
    jitter = params.color_jitter
    return jitter.order.index(HUE) if jitter is not None and modality.has_color else -1


def _fill_row(
    values: np.ndarray,
    params: AugmentParams,
    modality: Modality,
    *,
    shape: tuple[int, ...],
    size: int,
    levels: FlowLevels,
) -> None:
    top, bottom, left, right = crop_box(params.geometry, *shape)
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
    modality, numbers = plan.modality, plan.numbers
    # Images are 0..1 from here on, flow is in levels.
    clips = batch_ops.crop_resize(
        frames, numbers[:, SPANS].view(-1, 2, 5), plan.size, value_scale=1 if modality.signed_x else 1 / 255
    )
    if modality.stored_modality == "flow" and not modality.signed_x:  # an image (128, y, x)
        constant = torch.full_like(clips[:, :, :1], 128 / 255)
        clips = torch.cat([constant, clips[:, :, 1:], clips[:, :, :1]], dim=2)
    _jitter_(clips, plan)
    batch = len(frames)
    gray_rows, blurred_rows = plan.rows[batch:].split([plan.num_gray, plan.num_blurred])
    if plan.num_gray:
        weights = numbers.index_select(0, gray_rows)[:, GRAY]
        clips.index_copy_(0, gray_rows, batch_ops.gray(clips.index_select(0, gray_rows), weights))
    if plan.num_blurred:
        sigmas, radii = numbers.index_select(0, blurred_rows)[:, SIGMA : RADIUS + 1].unbind(1)
        clips.index_copy_(0, blurred_rows, batch_ops.blur(clips.index_select(0, blurred_rows), sigmas, radii))
    if modality.frame_difference:
        earlier, later = clips.chunk(2, dim=1)
        clips = later - earlier
    scale, shift = (
        numbers[:, columns].view(batch, 1, 3, 1, 1)[:, :, : modality.num_channels] for columns in (SCALE, SHIFT)
    )
    clips = torch.addcmul(shift, clips, scale)
    if plan.hue_places:  # only then were samples reordered
        clips = clips.index_select(0, plan.rows[:batch])
    return clips[:, 0] if modality.single_frame else clips.transpose(1, 2)


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
