"""A view from a clip: the one place where the operations are put in order."""

# T frames, C channels, H W pixels

import torch
from torch import Tensor

from covid_cmsf.views.blur import blur_
from covid_cmsf.views.colour import grey_, jitter_
from covid_cmsf.views.draws import ViewDraw
from covid_cmsf.views.geometry import cut, mirror
from covid_cmsf.views.modalities import Modality, normalise_, to_values

CHUNK = 4  # frames that go through the colour operations together, so that they stay in a CPU core's cache


def make_view(codes: Tensor, draw: ViewDraw, chosen: Modality, *, size: int, flow_bound: float) -> Tensor:
    """Stored uint8 (T, C, H, W) -> float view (C, T, size, size), or (C, size, size) of a single frame.

    `rgbdiff` takes twice T frames: those of the clip, then the one after each. Runs on the device of `codes`.
    """
    return finish_view(cut(codes, draw.geometry, size), draw, chosen, flow_bound=flow_bound)


def finish_view(codes: Tensor, draw: ViewDraw, chosen: Modality, *, flow_bound: float) -> Tensor:
    """What follows the cut: mirror, colours, blur, differences, normalisation. Workers may leave this to a GPU."""
    chunk = CHUNK if codes.device.type == "cpu" else len(codes)
    parts = [_finish_frames(part, draw, chosen, flow_bound) for part in codes.split(chunk)]
    clip = torch.cat(parts)  # (T, C, H, W)
    if chosen.differences:
        earlier, later = clip.chunk(2)
        clip = later - earlier
    normalise_(clip, chosen)
    return clip[0] if chosen.single_frame else clip.transpose(0, 1)


def _finish_frames(codes: Tensor, draw: ViewDraw, chosen: Modality, flow_bound: float) -> Tensor:
    frames = to_values(mirror(codes) if draw.geometry.flip else codes, chosen, flow_bound=flow_bound)
    if draw.geometry.flip and chosen.signed_x:
        frames[:, 0].neg_()
    if chosen.coloured:
        if draw.colour is not None:
            jitter_(frames, draw.colour)
        if draw.grey is not None:
            grey_(frames, draw.grey)
        if draw.sigma is not None:
            blur_(frames, draw.sigma)
    return frames
