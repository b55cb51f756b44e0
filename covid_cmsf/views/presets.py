"""Augmentation presets, and the pairings that assign a clip and a preset to each of the two views.

Presets: `strong`, `weak` and `std` are those of the CMSF paper (MoCo v2, crop and flip, PyTorch's ImageNet example);
`coclr` is CoCLR's strong pipeline with its one-attempt crop and its gray by channel, `finetune` that of CoCLR's
supervised training.
Pairings: `weak_strong` is the paper's (weak target view, strong online view). `coclr` is Han et al.'s mixture: half of
the time both views come from one clip, one strong and one weak; otherwise from two clips, each strong with
probability 0.3.
"""

from dataclasses import dataclass
from functools import cache
from typing import Literal

import numpy as np
from pydantic import Field

from covid_cmsf.config import Config

InputKind = Literal["rgb", "flow", "image", "audio"]


class Augmentation(Config):
    """A pipeline: crop and resize, jitter, gray, blur, flip. Probabilities are per clip, not per frame."""

    size: int = Field(default=128, ge=8, description="height and width of a view, pixels")
    center: float | None = Field(default=None, gt=0, le=1, description="fixed center crop, fraction of short edge")
    scale: tuple[float, float] = Field(default=(0.2, 1.0), description="area of the random crop, fraction of the frame")
    ratio: tuple[float, float] = Field(default=(3 / 4, 4 / 3), description="width over height of the random crop")
    attempts: int = Field(default=10, ge=1, description="attempts to fit the crop")
    squash: bool = Field(default=False, description="if no attempt fits: squash the frame (CoCLR), else center crop")
    flip: float = Field(default=0.5, ge=0, le=1)
    jitter: float = Field(default=0.0, ge=0, le=1)
    brightness: float = Field(default=0.4, ge=0)
    contrast: float = Field(default=0.4, ge=0)
    saturation: float = Field(default=0.4, ge=0)
    hue: float = Field(default=0.1, ge=0, le=0.5)
    gray: float = Field(default=0.0, ge=0, le=1)
    gray_by: Literal["luma", "channel"] = "luma"
    blur: float = Field(default=0.0, ge=0, le=1)
    sigma: tuple[float, float] = (0.1, 2.0)
    whole: bool = Field(default=False, description="no crop: resize the whole picture")
    time_mask: float = Field(default=0.0, ge=0, le=1, description="longest stretch of a spectrogram that is hidden")
    mel_mask: float = Field(default=0.0, ge=0, le=1, description="widest band of a spectrogram that is hidden")
    gain: float = Field(default=0.0, ge=0, le=1, description="louder or softer, at most by this share of the levels")

    @property
    def changes_sound(self) -> bool:
        """Whether spectrograms are masked, or made louder or softer."""
        return max(self.time_mask, self.mel_mask, self.gain) > 0


VISIBLE: tuple[InputKind, ...] = ("rgb", "flow", "image")
STRONG = Augmentation(jitter=0.8, gray=0.2, blur=0.5)
WEAK = Augmentation()
STD = Augmentation(scale=(0.08, 1.0))
FINETUNE = Augmentation(jitter=0.3)
# A spectrogram is never cropped or mirrored: its place in the picture is a pitch and a time. Masks are those of
# SpecAugment (Park et al. 2019), one of each kind; a gain of 0.06 is 6 dB.
SOUND = Augmentation(whole=True, flip=0, gain=0.06)
MASKED_SOUND = SOUND.model_copy(update={"time_mask": 0.3, "mel_mask": 0.3})
PRESETS: dict[str, dict[InputKind, Augmentation]] = {
    # Flow is motion, not color: it is only cropped and flipped (with a change of sign). Flow as an image
    # (flow_style: coclr) is augmented as RGB.
    "strong": {"rgb": STRONG, "flow": WEAK, "image": STRONG.model_copy(update={"size": 224}), "audio": MASKED_SOUND},
    "weak": {"rgb": WEAK, "flow": WEAK, "image": WEAK.model_copy(update={"size": 224}), "audio": SOUND},
    "std": {"rgb": STD, "flow": STD, "image": STD.model_copy(update={"size": 224}), "audio": SOUND},
    "finetune": {
        "rgb": FINETUNE,
        "flow": WEAK,
        "image": FINETUNE.model_copy(update={"size": 224}),
        "audio": MASKED_SOUND,
    },
    # The center square: 224 of 240 pixels for video (CoCLR's 224 crop of UCF-101), 224 of 256 for images.
    "eval": {
        "rgb": Augmentation(center=224 / 240, flip=0),
        "flow": Augmentation(center=224 / 240, flip=0),
        "image": Augmentation(center=224 / 256, flip=0, size=224),
        "audio": Augmentation(whole=True, flip=0),
    },
    "coclr": {kind: STRONG.model_copy(update={"attempts": 1, "squash": True, "gray_by": "channel"}) for kind in VISIBLE}
    | {"audio": MASKED_SOUND},
    "coclr_weak": {kind: WEAK.model_copy(update={"attempts": 1, "squash": True}) for kind in VISIBLE}
    | {"audio": SOUND},
}


@cache
def get_preset(
    name: str,
    kind: InputKind,
    *,
    size: int | None = None,
    scale: tuple[float, float] | None = None,
    blur: float | None = None,
    center: float | None = None,
) -> Augmentation:
    """Return the preset `name` for a kind of input, with another size, crop area, blur or center crop if given.

    `blur` is the probability in presets that have a blur; its width is in pixels, which is too much for small images.
    """
    if name not in PRESETS:
        raise ValueError(f"unknown augmentation {name!r}; choose from {', '.join(PRESETS)}")
    base = PRESETS[name][kind]
    overrides = {"size": size, "scale": scale, "blur": blur if base.blur > 0 else None, "center": center}
    changes = {key: value for key, value in overrides.items() if value is not None}
    return Augmentation.model_validate({**base.model_dump(), **changes})


PAIRINGS = ("weak_strong", "strong_strong", "strong_weak", "weak_weak", "std_std", "finetune_finetune", "coclr")


@dataclass(frozen=True)
class ViewSpec:
    """One view: index of its clip (0 or 1) and name of its preset."""

    clip: int
    preset: str


def sample_view_specs(pairing: str, rng: np.random.Generator, *, num_clips: int = 2) -> tuple[ViewSpec, ViewSpec]:
    """Draw (online, target). With `num_clips=1` both views come from one clip; `coclr` ignores `num_clips`."""
    if pairing == "coclr":
        return _sample_coclr_specs(rng)
    if pairing not in PAIRINGS:
        raise ValueError(f"unknown pairing {pairing!r}; choose from {', '.join(PAIRINGS)}")
    target, online = pairing.split("_")  # named target_online, as in the official code
    return ViewSpec(0, online), ViewSpec(num_clips - 1, target)


def _sample_coclr_specs(rng: np.random.Generator) -> tuple[ViewSpec, ViewSpec]:
    share_clip, first_strong, second_strong, strong_first = rng.random(4)
    if share_clip < 0.5:
        presets = ("coclr", "coclr_weak") if strong_first < 0.5 else ("coclr_weak", "coclr")
        return ViewSpec(0, presets[0]), ViewSpec(0, presets[1])
    return (
        ViewSpec(0, "coclr" if first_strong < 0.3 else "coclr_weak"),
        ViewSpec(1, "coclr" if second_strong < 0.3 else "coclr_weak"),
    )
