"""Evaluation protocols: which windows of a video an encoder gets, and how they are cropped and normalized.

`clean` is deterministic and treats gallery and query alike. `coclr` repeats the code of Han et al. (2020), with its
random clips and color jitter, so that results are comparable with published tables.
"""

import hashlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from pydantic import Field, SerializerFunctionWrapHandler, model_serializer
from torch import Tensor

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.clips.sampling import clip_span, pad_clip, sliding_windows, spread_windows
from covid_cmsf.config import Config, validate
from covid_cmsf.models import EncoderMetadata
from covid_cmsf.models.input_transform import InputTransform, normalize_view, normalize_views
from covid_cmsf.views.augment_params import AugmentParams
from covid_cmsf.views.modalities import FlowStyle, Modality, get_modality
from covid_cmsf.views.presets import Augmentation, get_preset
from covid_cmsf.views.resize import Resize

# C channels, T frames, H W pixels


ProtocolName = Literal["clean", "coclr"]
NEWER = ("crop", "resize")
NUM_WINDOWS = 4  # default of the clean protocol; a single-frame modality uses the center frame of the video


class CroppedClip(NamedTuple):
    """A clip, cropped and resized; what is left to do to it; the levels of its flow."""

    raw: Tensor  # uint8 (T, C, H, W)
    params: AugmentParams
    levels: FlowLevels


class EvalProtocol(Config):
    """Everything that the encoder's input depends on. It is recorded in every features file and result."""

    name: ProtocolName = "clean"
    modality: str
    flow_style: FlowStyle = "motion"
    mean: tuple[float, ...]
    std: tuple[float, ...]
    length: int = Field(ge=1, description="frames per window; a single-frame modality uses the one in the center")
    stride: int = Field(ge=1, description="distance of consecutive frames")
    size: int = Field(ge=8, description="pixels, height and width")
    num_windows: int = Field(ge=1, description="per video, evenly spaced; ignored by protocol coclr")
    seed: int = Field(default=0, ge=0, description="for the random clips and colors of protocol coclr")
    crop: float | None = Field(
        default=None, gt=0, le=1, description="center square, share of the short edge; default: the modality's"
    )
    resize: Resize | None = Field(
        default=None, description="of whole frames, before the crop; default: crop, then resize (bilinear)"
    )

    @model_serializer(mode="wrap")
    def _omit_newer(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out a crop and a resize that are not given: the fingerprints of older features stay what they are."""
        return {key: value for key, value in handler(self).items() if key not in NEWER or value is not None}

    def resolve_modality(self) -> Modality:
        """Return the modality; `mean` and `std` of the protocol, not its own, normalize the view."""
        return get_modality(self.modality, flow_style=self.flow_style)

    def augmentation(self) -> Augmentation:
        """Return the center crop; protocol coclr adds color jitter with probability 0.3, as its authors' code does."""
        center = get_preset("eval", self.resolve_modality().kind, size=self.size, center=self.crop)
        if self.name == "clean":
            return center
        jittered = {"jitter": 0.3, "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "hue": 0.1}
        return center.model_copy(update=jittered)

    def to_view(self, raw: Tensor, params: AugmentParams, levels: FlowLevels) -> Tensor:
        """Map cropped frames, uint8 (T, C, H, W), to the encoder's input: float (C, T, H, W), or (C, H, W) of one."""
        return normalize_view(raw, params, self.resolve_modality(), mean=self.mean, std=self.std, levels=levels)

    def to_views(self, clips: Sequence[CroppedClip], device: torch.device) -> Tensor:
        """Map cropped clips of a CPU to the encoder's inputs (B, C, T, H, W) on a device, those of a batch at once."""
        raw, params, levels = zip(*clips, strict=True)
        modality = self.resolve_modality()
        return normalize_views(raw, params, modality, mean=self.mean, std=self.std, levels=levels, device=device)


def build_eval_protocol(
    metadata: EncoderMetadata,
    *,
    protocol: str = "clean",
    modality: str | None = None,
    length: int | None = None,
    size: int | None = None,
    stride: int | None = None,
    num_windows: int | None = None,
    seed: int = 0,
) -> EvalProtocol:
    """Build the protocol from the encoder's metadata; arguments that are not None override it."""
    if protocol not in get_args(ProtocolName):
        raise ValueError(f"unknown protocol {protocol!r}; choose from {', '.join(get_args(ProtocolName))}")
    if protocol == "coclr" and num_windows is not None:
        raise ValueError("protocol coclr defines its windows; the number of windows is an option of protocol clean")
    transform = InputTransform.from_metadata(metadata, modality=modality, length=length, stride=stride, size=size)
    resolved = transform.modality
    values = {
        "name": protocol,
        "modality": resolved.name,
        "flow_style": "coclr" if resolved.is_flow and not resolved.signed_x else "motion",
        "mean": transform.mean,
        "std": transform.std,
        "length": transform.length,
        "stride": transform.stride,
        "size": transform.size,
        "num_windows": (1 if resolved.single_frame else NUM_WINDOWS) if num_windows is None else num_windows,
        "seed": seed,
        "crop": transform.crop,
        "resize": transform.resize,
    }
    return validate(EvalProtocol, values, origin="evaluation protocol")


# Windows of each protocol, as frame indices


def choose_windows(
    eval_protocol: EvalProtocol, num_frames: int, subset: str, rng: np.random.Generator
) -> list[list[int]]:
    """Return the windows of a video, each a list of frame indices; `subset` only matters to protocol coclr.

    ValueError if the protocol excludes the video.
    """
    length, stride = eval_protocol.length, eval_protocol.stride
    if eval_protocol.name == "clean" or length == 1:
        return spread_windows(num_frames, length=length, stride=stride, num_windows=eval_protocol.num_windows)
    fewest = length // 2 * stride + 2
    if num_frames < fewest:
        raise ValueError(f"protocol coclr excludes videos of fewer than {fewest} frames; this one has {num_frames}")
    if subset == "train":
        return [_random_clip(num_frames, rng, length=length, stride=stride)]
    return sliding_windows(num_frames, length=length, stride=stride)


def _random_clip(num_frames: int, rng: np.random.Generator, *, length: int, stride: int) -> list[int]:
    """Draw a clip as CoCLR's code does: it counts length * stride frames and never draws the last valid start."""
    free = num_frames - length * stride
    if free <= 0:
        return pad_clip(num_frames, length=length, stride=stride)
    start = int(rng.integers(free))
    return list(range(start, start + clip_span(length, stride), stride))


def video_rng(seed: int, video_id: str) -> np.random.Generator:
    """Return the random generator of a video: it depends on seed and id only, not on the order of reading."""
    digest = hashlib.sha256(video_id.encode("utf-8", "surrogateescape")).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])
