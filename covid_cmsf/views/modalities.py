"""The modalities: stored frames, shape of a view, and normalization.

| name            | reads           | view         | normalization                                               |
|-----------------|-----------------|--------------|-------------------------------------------------------------|
| rgb             | frames i        | (3, T, H, W) | ImageNet mean and standard deviation                        |
| flow            | flow i          | (2, T, H, W) | pixels / 4; a flip negates x                                |
| residual_flow   | flow i          | (2, T, H, W) | as flow, minus the frame's median: without the camera's pan |
| motion          | motion i        | (2, T, H, W) | as flow; the motion vectors of the video file               |
| residual_motion | motion i        | (2, T, H, W) | as motion, minus the frame's median                         |
| rgbdiff         | frames i, i + 1 | (3, T, H, W) | difference / 0.1; shows the motion of flow i                |
| frame           | one frame       | (3, H, W)    | as rgb; an image, for 2D networks                           |
| audio           | audio i         | (1, H, W)    | level / 255, mean 0.58, deviation 0.17; mels x time         |

The spectrogram of a clip is one image, of all frames from its first to its last also if it has a stride.

Shapes: T frames, C channels, H x W pixels.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.clips.records import FLOW_MODALITIES
from covid_cmsf.views.presets import InputKind

FlowStyle = Literal["motion", "coclr"]
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
FLOW_STD = 4.0  # pixels; real motion has about this spread
DIFFERENCE_STD = 0.1
AUDIO_MEAN, AUDIO_STD = 0.58, 0.17  # of UCF-101's clips that have sound


@dataclass(frozen=True)
class Modality:
    """A modality: reads `stored_modality` from disk, is augmented by the presets of `kind`."""

    name: str
    stored_modality: str
    kind: InputKind
    num_channels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    has_color: bool  # color operations apply
    signed_x: bool = False  # channel 0 is horizontal motion: a flip negates it
    frame_difference: bool = False  # frame i + 1 minus frame i
    single_frame: bool = False
    subtract_median: bool = False  # of each flow frame, which is mostly the camera's motion
    spectrogram: bool = False  # the frames of a clip are joined along time to one image

    @property
    def is_image(self) -> bool:
        """Whether a view is an image (C, H, W), for 2D networks, instead of a clip."""
        return self.single_frame or self.spectrogram

    @property
    def is_flow(self) -> bool:
        """Whether the stored frames are optical flow or motion vectors."""
        return self.stored_modality in FLOW_MODALITIES


MODALITIES = {
    "rgb": Modality("rgb", "rgb", "rgb", 3, IMAGENET_MEAN, IMAGENET_STD, has_color=True),
    "flow": Modality("flow", "flow", "flow", 2, (0.0, 0.0), (FLOW_STD, FLOW_STD), has_color=False, signed_x=True),
    "residual_flow": Modality(
        "residual_flow",
        "flow",
        "flow",
        2,
        (0.0, 0.0),
        (FLOW_STD, FLOW_STD),
        has_color=False,
        signed_x=True,
        subtract_median=True,
    ),
    "motion": Modality("motion", "motion", "flow", 2, (0.0, 0.0), (FLOW_STD, FLOW_STD), has_color=False, signed_x=True),
    "residual_motion": Modality(
        "residual_motion",
        "motion",
        "flow",
        2,
        (0.0, 0.0),
        (FLOW_STD, FLOW_STD),
        has_color=False,
        signed_x=True,
        subtract_median=True,
    ),
    "rgbdiff": Modality(
        "rgbdiff", "rgb", "rgb", 3, (0.0,) * 3, (DIFFERENCE_STD,) * 3, has_color=True, frame_difference=True
    ),
    "frame": Modality("frame", "rgb", "image", 3, IMAGENET_MEAN, IMAGENET_STD, has_color=True, single_frame=True),
    "audio": Modality("audio", "audio", "audio", 1, (AUDIO_MEAN,), (AUDIO_STD,), has_color=False, spectrogram=True),
}
# The input of CoCLR's released flow networks: (128, y, x) as a color image, flipped without a change of sign, and
# augmented as RGB is: color jitter, gray and blur in strong views (Han et al. 2020).
COCLR_FLOW = Modality("flow", "flow", "rgb", 3, IMAGENET_MEAN, IMAGENET_STD, has_color=True)


def get_modality(name: str, *, flow_style: FlowStyle = "motion") -> Modality:
    """Return the modality `name`; `flow_style="coclr"` is the input that CoCLR's released weights expect."""
    if name not in MODALITIES:
        raise ValueError(f"unknown modality {name!r}; choose from {', '.join(MODALITIES)}")
    return COCLR_FLOW if name == "flow" and flow_style == "coclr" else MODALITIES[name]


def compensate_camera(raw: Tensor, modality: Modality, *, levels: FlowLevels) -> Tensor:
    """Return whole stored frames, uint8 (T, C, H, W), with each flow frame's median moved to the level of no motion.

    Most of a frame is background, so its median is the camera's pan (Simonyan and Zisserman 2014 subtract the mean).
    Only for modalities that ask for it. Motion that leaves the levels is clipped to the fastest one.

    Example:
        >>> pan = torch.full((1, 2, 4, 4), 200, dtype=torch.uint8)
        >>> compensate_camera(pan, get_modality("residual_flow"), levels=COCLR_LEVELS).unique().tolist()
        [128]
    """
    if not modality.subtract_median:
        return raw
    median = raw.flatten(2).median(2).values.int()
    shift = round(-levels.offset / levels.step) - median
    return (raw.int() + shift[..., None, None]).clamp_(0, 255).to(torch.uint8)


def assemble(raw: Tensor, modality: Modality, *, levels: FlowLevels) -> Tensor:
    """Return the stored frames of a window, uint8 (T, C, H, W), as they are cropped and resized.

    Those of a spectrogram become one image (1, C, H, T W), those of residual flow lose the camera's pan.
    """
    if modality.spectrogram:
        return raw.permute(1, 2, 0, 3).flatten(2).unsqueeze(0)
    return compensate_camera(raw, modality, levels=levels)


def dequantize(raw: Tensor, modality: Modality, *, levels: FlowLevels, out: Tensor | None = None) -> Tensor:
    """Convert uint8 (T, C, H, W) to float: 0..1 for images, pixels for flow. CoCLR's flow is an image (128, y, x)."""
    t, _, h, w = raw.shape
    out = torch.empty(t, modality.num_channels, h, w, device=raw.device) if out is None else out
    if modality.is_flow and not modality.signed_x:
        out[:, 0] = 128
        out[:, 1:].copy_(raw.flip(1))  # (128, y, x)
    else:
        out.copy_(raw)
    return out.mul_(levels.step).add_(levels.offset) if modality.signed_x else out.mul_(1 / 255)


def normalize_(values: Tensor, modality: Modality) -> Tensor:
    """Subtract the mean and divide by the standard deviation of each channel (dim 1), in place."""
    mean, std = (
        torch.tensor(numbers, device=values.device).view(-1, 1, 1) for numbers in (modality.mean, modality.std)
    )
    return values.sub_(mean).div_(std)


def dequantize_and_normalize(raw: Tensor, modality: Modality, *, levels: FlowLevels, flipped: bool) -> Tensor:
    """Return `normalize_(dequantize(raw))` in one step, for views without color operations.

    The memory layout is that of `raw`: decoded frames are channels-last, which the networks use as well.
    """
    if modality.signed_x:
        scales, shifts = ([value / std for std in modality.std] for value in (levels.step, levels.offset))
        if flipped:
            scales[0], shifts[0] = -scales[0], -shifts[0]
    else:
        scales = [1 / 255 / std for std in modality.std]
        shifts = [-mean / std for mean, std in zip(modality.mean, modality.std, strict=True)]
    scale, shift = (torch.tensor(numbers, device=raw.device) for numbers in (scales, shifts))
    channels_last = raw.permute(0, 2, 3, 1)
    if not channels_last.is_contiguous():
        return raw.float().mul_(scale.view(-1, 1, 1)).add_(shift.view(-1, 1, 1))
    t, h, w, c = channels_last.shape
    flat_rows = channels_last.reshape(t, h, w * c).float()  # long rows: faster inner loops
    return flat_rows.mul_(scale.repeat(w)).add_(shift.repeat(w)).view(t, h, w, c).permute(0, 3, 1, 2)
