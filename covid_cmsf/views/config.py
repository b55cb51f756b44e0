"""Configuration of clips and views: from a file of its own, or the section `views` of a training configuration."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from covid_cmsf.clips.sampling import PadMode
from covid_cmsf.config import Config, apply_override, load_config, read_yaml, validate
from covid_cmsf.views.modalities import MODALITIES, FlowStyle, Modality, get_modality
from covid_cmsf.views.presets import PAIRINGS


class ViewConfig(Config):
    """Clips and views of a training run; the defaults are the paper's (32 frames of 128 pixels, RGB and flow).

    Example:
        >>> config = cc.ViewConfig(modalities=("rgb",), length=16, pairing="strong_strong")
        >>> data = cc.ViewDataset(cc.open_clips("clips/ucf101"), config=config)
    """

    modalities: tuple[str, ...] = Field(
        default=("rgb", "flow"),
        min_length=1,
        description="rgb, flow, residual_flow, motion, residual_motion, rgbdiff, frame, audio; a run adds some",
    )
    length: int = Field(default=32, ge=1, description="frames per clip")
    stride: int = Field(default=1, ge=1, description="temporal stride, in frames")
    pad_mode: PadMode = Field(default="pad", description="videos shorter than a clip: pad in front (CoCLR), or loop")
    size: int = Field(default=128, ge=8, description="height and width of a view, in pixels")
    frame_size: int = Field(default=224, ge=8, description="the same for the modality `frame` (2D networks)")
    pairing: str = Field(default="weak_strong", description=f"one of {', '.join(PAIRINGS)}")
    num_clips: Literal[1, 2] = Field(default=2, description="both views from one clip, or from two independent clips")
    crop: tuple[float, float] | None = Field(
        default=None, description="area of random crops, as a fraction of the frame; null: the preset's (0.2 to 1)"
    )
    blur: float | None = Field(
        default=None, ge=0, le=1, description="probability of a blur in strong views; null: the preset's (0.5)"
    )
    share_geometry: bool = Field(default=True, description="RGB and flow of a view share crop and flip")
    flow_style: FlowStyle = Field(default="motion", description="coclr: flow as an image, for CoCLR's released weights")

    @field_validator("modalities")
    @classmethod
    def _check_modalities(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in MODALITIES:
                raise ValueError(f"unknown modality {name!r}; choose from {', '.join(MODALITIES)}")
        if len(set(names)) != len(names):
            raise ValueError(f"a modality is listed twice in {', '.join(names)}")
        return names

    @field_validator("pairing")
    @classmethod
    def _check_pairing(cls, name: str) -> str:
        if name not in PAIRINGS:
            raise ValueError(f"unknown pairing {name!r}; choose from {', '.join(PAIRINGS)}")
        return name

    @field_validator("crop")
    @classmethod
    def _check_crop(cls, crop: tuple[float, float] | None) -> tuple[float, float] | None:
        if crop is not None and not 0 < crop[0] <= crop[1] <= 1:
            raise ValueError(f"crop is [{crop[0]}, {crop[1]}]; it must be [low, high] with 0 < low <= high <= 1")
        return crop

    def view_shape(self, modality: Modality) -> tuple[int, int]:
        """Return the frames of a view, 1 for an image, and its height and width in pixels."""
        return 1 if modality.is_image else self.length, self.frame_size if modality.single_frame else self.size

    def get_modalities(self) -> list[Modality]:
        """Return the `Modality` objects of `modalities`."""
        return [get_modality(name, flow_style=self.flow_style) for name in self.modalities]


def load_view_config(path: Path | None, overrides: Sequence[str] = ()) -> ViewConfig:
    """Load a file (None: the defaults) with `key=value` or `views.key=value` overrides.

    If the file has a section `views`, only that section is read.
    """
    own_overrides = [text.lstrip("+").removeprefix("views.") for text in overrides]
    values = read_yaml(path) if path is not None else {}
    if "views" not in values:
        return load_config(ViewConfig, path, own_overrides)
    if not isinstance(values["views"], dict):
        raise ValueError(f"{path}: the section views must be a mapping, not {values['views']!r}")
    section = dict(values["views"])
    for text in own_overrides:
        apply_override(section, text)
    return validate(ViewConfig, section, origin=f"{path}, section views")
