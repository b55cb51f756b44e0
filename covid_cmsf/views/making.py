"""A view from a clip: the one place where the operations are put in order."""

# T frames, C channels, H W pixels

import torch
from torch import Tensor

from covid_cmsf.views.blur import blur_
from covid_cmsf.views.color import gray_, jitter_
from covid_cmsf.views.draws import ViewDraw
from covid_cmsf.views.geometry import cut, mirror
from covid_cmsf.views.modalities import Modality, normalize_, normalized, to_values

CHUNK = 4  # frames that go through the color operations together, so that they stay in a CPU core's cache


def make_view(codes: Tensor, draw: ViewDraw, chosen: Modality, *, size: int, flow_bound: float) -> Tensor:
    """Stored uint8 (T, C, H, W) -> float view (C, T, size, size), or (C, size, size) of a single frame.

    `rgbdiff` takes twice T frames: those of the clip, then the one after each. Runs on the device of `codes`.
    """
    return finish_view(cut(codes, draw.geometry, size), draw, chosen, flow_bound=flow_bound)


def finish_view(codes: Tensor, draw: ViewDraw, chosen: Modality, *, flow_bound: float) -> Tensor:
    """What follows the cut: mirror, colors, blur, differences, normalization. Workers may leave this to a GPU."""
    flipped = draw.geometry.flip
    codes = mirror(codes) if flipped else codes
    colored = chosen.colored and (draw.color is not None or draw.gray is not None or draw.sigma is not None)
    picture_of_flow = chosen.stored == "flow" and not chosen.signed_x
    if colored or chosen.differences or picture_of_flow:
        clip = _with_colors(codes, draw, chosen, flow_bound)
    else:
        clip = normalized(codes, chosen, flow_bound=flow_bound, mirrored=flipped)
    return clip[0] if chosen.single_frame else clip.transpose(0, 1)


def _with_colors(codes: Tensor, draw: ViewDraw, chosen: Modality, flow_bound: float) -> Tensor:
    """(T, C, H, W) floats; frames go through in small groups, in place, so that they stay in a core's cache."""
    num_frames, _, height, width = codes.shape
    clip = torch.empty(num_frames, chosen.num_channels, height, width, device=codes.device)
    group = CHUNK if codes.device.type == "cpu" else num_frames
    for start in range(0, num_frames, group):
        frames = clip[start : start + group]
        to_values(codes[start : start + group], chosen, flow_bound=flow_bound, out=frames)
        if draw.color is not None:
            jitter_(frames, draw.color)
        if draw.gray is not None:
            gray_(frames, draw.gray)
        if draw.sigma is not None:
            blur_(frames, draw.sigma)
        if not chosen.differences:
            normalize_(frames, chosen)
    if chosen.differences:
        earlier, later = clip.chunk(2)
        return normalize_(later - earlier, chosen)
    return clip
