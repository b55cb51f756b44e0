"""Preprocess decoded frames into the clip that an encoder takes, by its metadata: `encoder.preprocess(frames)`.

The evaluation protocols use the same functions, so both give the same values. Shapes: T frames, C channels, H W pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips.flow_codec import COCLR_LEVELS, FlowLevels
from covid_cmsf.clips.records import FlowInfo
from covid_cmsf.clips.sampling import spread_windows
from covid_cmsf.devices import send
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.views.augment_params import AugmentParams, sample_augment_params
from covid_cmsf.views.batch_augment import augment_batch, plan_batch
from covid_cmsf.views.dataset import required_frames
from covid_cmsf.views.modalities import MODALITIES, Modality, assemble, get_modality
from covid_cmsf.views.ops import crop_resize, interpolate
from covid_cmsf.views.pipeline import finish_view
from covid_cmsf.views.presets import get_preset
from covid_cmsf.views.resize import Resize


@dataclass(frozen=True)
class InputTransform:
    """Center window, center square, resize, normalization. `mean` and `std` have one value per channel."""

    modality: Modality
    mean: tuple[float, ...]
    std: tuple[float, ...]
    length: int  # frames
    stride: int  # between sampled frames
    size: int  # pixels, height and width
    flow: FlowInfo | None = None  # of the clips that the encoder was trained on
    crop: float | None = None  # center square, share of the short edge; None: as the modality's networks
    resize: Resize | None = None  # of whole frames, before the crop; None: crop, then resize (bilinear)

    @classmethod
    def from_metadata(
        cls,
        metadata: EncoderMetadata,
        *,
        modality: str | None = None,
        length: int | None = None,
        stride: int | None = None,
        size: int | None = None,
    ) -> "InputTransform":
        """Build the transform that the encoder was trained with; arguments replace single values."""
        resolved = encoder_modality(metadata, modality)
        frames, height, width = metadata.input_size
        if size is None and height != width:
            raise ValueError(f"the encoder was trained on {height}x{width} pixels; give a square size")
        single = resolved.single_frame
        return cls(
            modality=resolved,
            mean=resolved.mean if resolved.frame_difference else metadata.mean,
            std=resolved.std if resolved.frame_difference else metadata.std,
            length=length if length is not None else 1 if single else frames,
            stride=stride if stride is not None else 1 if single else metadata.stride,
            size=height if size is None else size,
            flow=metadata.flow,
            crop=metadata.crop,
            resize=metadata.resize,
        )

    def __call__(self, frames: Tensor | NDArray[np.generic], *, levels: FlowLevels | None = None) -> Tensor:
        """Return the clip (C, length, size, size), float32; for an encoder of images or of sound (C, size, size).

        RGB frames are uint8, (T, H, W, 3) or (T, 3, H, W). Sound is uint8 (T, 1, H, W), as a clip store has it.
        Flow is (T, H, W, 2) or (T, 2, H, W), x first: floats in pixels, or the uint8 `levels` of a clip store
        (`clips.flow_levels(record)`; default: those of the clips that the encoder was trained on, or CoCLR's if they
        are unknown). Flow stays in pixels of the given frames, so compute it at the frame size that the encoder was
        trained with. Shorter videos are padded with their first frame, as in training.
        """
        tensor = self._check_frames(torch.as_tensor(frames))
        levels = levels or self._choose_levels(tensor)
        raw = self._to_raw(tensor, levels)
        usable = len(raw) - 1 if self.modality.frame_difference else len(raw)
        if usable < 1:
            raise ValueError(f"{len(raw)} frames are too few for {self.modality.name}")
        (window,) = spread_windows(usable, length=self.length, stride=self.stride, num_windows=1)
        frames_of = required_frames(self.modality, window, single=len(window) // 2)
        return self.from_stored(raw[torch.tensor(frames_of, device=raw.device)], levels=levels)

    def from_stored(self, raw: Tensor, *, levels: FlowLevels) -> Tensor:
        """Return the clip of one window, whose frames (T, C, H, W) are uint8 as a clip store has them."""
        raw = assemble(raw, self.modality, levels=levels)
        center = get_preset("eval", self.modality.kind, size=self.size, center=self.crop)
        if self.resize is not None:
            raw, center = self.resize.apply(raw, center)
        params = sample_augment_params(  # not random: the preset is a center crop
            center, np.random.default_rng(0), height=raw.shape[-2], width=raw.shape[-1]
        )
        cropped = crop_resize(raw, params.geometry, self.size)
        return normalize_view(cropped, params, self.modality, mean=self.mean, std=self.std, levels=levels)

    def from_view(self, view: Tensor) -> Tensor:
        """Return views of training, (B, C, T, H, W) or (B, C, H, W), with this encoder's normalization and size."""
        seen = self.modality
        scale = [theirs / own for theirs, own in zip(seen.std, self.std, strict=True)]
        shift = [(theirs - own) / std for theirs, own, std in zip(seen.mean, self.mean, self.std, strict=True)]
        shape = (-1, *(1,) * (view.dim() - 2))
        factors, offsets = (torch.tensor(numbers, device=view.device).view(shape) for numbers in (scale, shift))
        view = view * factors + offsets
        if view.shape[-1] == self.size:
            return view
        frames = view.transpose(1, 2).flatten(0, 1) if view.dim() == 5 else view  # (B T, C, H, W)
        resize = Resize() if self.resize is None else self.resize
        shape = (self.size, self.size)
        frames = interpolate(frames, shape, interpolation=resize.interpolation, antialias=resize.antialias)
        return frames.unflatten(0, (len(view), -1)).transpose(1, 2) if view.dim() == 5 else frames

    def _choose_levels(self, frames: Tensor) -> FlowLevels:
        """Return the levels of the training clips, for flow (T, 2, H, W)."""
        if self.flow is None or not self.modality.is_flow:
            return COCLR_LEVELS
        motion = frames.detach().cpu().float().numpy() if frames.is_floating_point() else None
        return self.flow.choose_levels(frames.shape[-1], frames.shape[-2], motion)

    def _check_frames(self, frames: Tensor) -> Tensor:
        """Return (T, C, H, W) with the stored channels: three of RGB, two of flow, one of sound."""
        is_flow = self.modality.is_flow
        channels = 2 if is_flow else 1 if self.modality.spectrogram else 3
        if frames.dim() != 4 or channels not in (frames.shape[1], frames.shape[-1]):
            raise ValueError(
                f"frames of shape {tuple(frames.shape)}: {self.modality.name} takes (T, H, W, {channels}) or "
                f"(T, {channels}, H, W)" + ("; compute the optical flow first" if is_flow else "")
            )
        if frames.dtype != torch.uint8 and not (is_flow and frames.is_floating_point()):
            accepted = "uint8 or floats in pixels" if is_flow else "uint8, 0 to 255"
            raise ValueError(f"frames of {frames.dtype}: {self.modality.name} takes {accepted}")
        return frames if frames.shape[-1] != channels else frames.permute(0, 3, 1, 2)

    @staticmethod
    def _to_raw(frames: Tensor, levels: FlowLevels) -> Tensor:
        """Return uint8, as stored."""
        if not frames.is_floating_point():
            return frames
        return torch.from_numpy(levels.encode(frames.detach().cpu().float().numpy())).to(frames.device)


def encoder_modality(metadata: EncoderMetadata, modality: str | None = None) -> Modality:
    """Return the modality that this encoder takes; for flow, the number of channels determines the style.

    `modality` is for weights that do not know theirs; ValueError if they do and it is another one.
    """
    name = metadata.modality if modality is None else modality
    if metadata.modality not in ("unknown", name):
        get_modality(name)  # an unknown name is the first error
        raise ValueError(
            f"this {metadata.encoder} was trained on {metadata.modality}, so it can't be used on {name}; leave the "
            "modality out, or take weights that were trained on it"
        )
    if name == "unknown":
        raise ValueError(
            f"the weights do not say which modality they were trained on; give one of {', '.join(MODALITIES)}"
        )
    resolved = get_modality(name, flow_style="coclr" if metadata.in_channels == 3 else "motion")
    if resolved.num_channels != metadata.in_channels:
        raise ValueError(
            f"this {metadata.encoder} takes {metadata.in_channels} channels, and {name} has {resolved.num_channels}"
        )
    return resolved


def normalize_view(
    raw: Tensor,
    params: AugmentParams,
    modality: Modality,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    levels: FlowLevels,
) -> Tensor:
    """Convert cropped uint8 frames (T, C, H, W) to a float view with the encoder's own mean and standard deviation.

    Two channels of flow whose mean is not 0 belong to a CoCLR network adapted to (x, y), which takes bytes / 255.
    """
    if not (modality.signed_x and any(mean)):
        return finish_view(raw, params, replace(modality, mean=mean, std=std), levels=levels)
    view = finish_view(raw, params, replace(modality, std=(1.0, 1.0)), levels=levels)
    means, stds = (torch.tensor(values, device=view.device).view(-1, 1, 1, 1) for values in (mean, std))
    return (view / (2 * levels.bound) + 0.5 - means) / stds


def normalize_views(
    raw: Sequence[Tensor],
    params: Sequence[AugmentParams],
    modality: Modality,
    *,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    levels: Sequence[FlowLevels],
    device: torch.device,
) -> Tensor:
    """Return the views of `normalize_view` (B, ...) on a device; a GPU makes those of all clips at once.

    The values are those of a CPU up to rounding.
    """
    scales_by_bound = modality.signed_x and any(mean)  # see `normalize_view`
    if device.type == "cpu" or scales_by_bound:
        views = [
            normalize_view(clip.to(device), one, modality, mean=mean, std=std, levels=level)
            for clip, one, level in zip(raw, params, levels, strict=True)
        ]
        return torch.stack(views)
    seen = replace(modality, mean=mean, std=std)
    frames, plan = plan_batch(raw, params, seen, size=raw[0].shape[-1], levels=levels, cropped=True)
    return augment_batch(send(frames, device), plan.with_tensors(send(plan.numbers, device), send(plan.rows, device)))
