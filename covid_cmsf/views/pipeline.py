"""The order of the operations that make a view: crop, flip, color, blur, difference, normalization.

Shapes: T frames, C channels, H x W pixels.
"""

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.views.augment_params import AugmentParams
from covid_cmsf.views.modalities import Modality, dequantize, dequantize_and_normalize, normalize_
from covid_cmsf.views.ops import blur_, crop_resize, gray_, hflip, jitter_

FRAMES_PER_CHUNK = 4  # frames per pass of the color operations on a CPU, so that they stay in the cache


def make_view(raw: Tensor, params: AugmentParams, modality: Modality, *, size: int, levels: FlowLevels) -> Tensor:
    """Make a float view (C, T, size, size) from stored uint8 (T, C, H, W); (C, size, size) for a single frame.

    `rgbdiff` takes 2T frames: those of the clip, then the frame after each. Runs on the device of `raw`.
    """
    return finish_view(crop_resize(raw, params.geometry, size), params, modality, levels=levels)


def finish_view(raw: Tensor, params: AugmentParams, modality: Modality, *, levels: FlowLevels) -> Tensor:
    """Apply everything after the crop: flip, colors, blur, difference, normalization; on a GPU if `defer` is used."""
    flipped = params.geometry.flip
    raw = hflip(raw) if flipped else raw
    has_color = modality.has_color and (
        params.color_jitter is not None or params.gray_channel is not None or params.blur_sigma is not None
    )
    flow_as_image = modality.is_flow and not modality.signed_x
    if has_color or modality.frame_difference or flow_as_image:
        clip = _augment_colors(raw, params, modality, levels)
    else:
        clip = dequantize_and_normalize(raw, modality, levels=levels, flipped=flipped)
    return clip[0] if modality.is_image else clip.transpose(0, 1)


def _augment_colors(raw: Tensor, params: AugmentParams, modality: Modality, levels: FlowLevels) -> Tensor:
    """Return float (T, C, H, W); operations run in place on chunks of frames that fit into a core's cache."""
    num_frames, _, height, width = raw.shape
    clip = torch.empty(num_frames, modality.num_channels, height, width, device=raw.device)
    chunk_size = FRAMES_PER_CHUNK if raw.device.type == "cpu" else num_frames
    for start in range(0, num_frames, chunk_size):
        frames = clip[start : start + chunk_size]
        dequantize(raw[start : start + chunk_size], modality, levels=levels, out=frames)
        if params.color_jitter is not None:
            jitter_(frames, params.color_jitter)
        if params.gray_channel is not None:
            gray_(frames, params.gray_channel)
        if params.blur_sigma is not None:
            blur_(frames, params.blur_sigma)
        if not modality.frame_difference:
            normalize_(frames, modality)
    if modality.frame_difference:
        earlier, later = clip.chunk(2)
        return normalize_(later - earlier, modality)
    return clip
