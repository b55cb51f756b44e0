"""What the networks see, as settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from covid_cmsf.clips.sampling import PadMode
from covid_cmsf.config import Config, apply_override, load_config, read_yaml, validate
from covid_cmsf.views.modalities import MODALITIES, FlowStyle, Modality, get_modality
from covid_cmsf.views.presets import PAIRINGS


class ViewConfig(Config):
    """Clips and views of a training run; the defaults are the paper's (32 frames of 128 pixels, RGB and flow)."""

    modalities: tuple[str, ...] = Field(default=("rgb", "flow"), min_length=1)
    length: int = Field(default=32, ge=1, description="frames of a clip")
    stride: int = Field(default=1, ge=1, description="frames from one to the next")
    pad_mode: PadMode = Field(default="pad", description="videos that are too short: pad in front (CoCLR), or loop")
    size: int = Field(default=128, ge=8, description="pixels, height and width")
    frame_size: int = Field(default=224, ge=8, description="pixels of the modality `frame`, for 2D networks")
    pairing: str = Field(default="weak_strong", description=f"one of {', '.join(PAIRINGS)}")
    num_clips: Literal[1, 2] = Field(default=2, description="views from one clip, or from two drawn independently")
    crop: tuple[float, float] | None = Field(
        default=None, description="area of random crops, share of the frame, where the preset's (0.2 to 1) won't do"
    )
    blur: float | None = Field(
        default=None, ge=0, le=1, description="chance of a blur, where that of strong views (0.5) won't do; 0: none"
    )
    share_geometry: bool = Field(default=True, description="RGB and flow of a view share crop and flip")
    flow_style: FlowStyle = Field(default="motion", description="coclr: as released CoCLR weights expect flow")

    @field_validator("modalities")
    @classmethod
    def _check_modalities(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in MODALITIES:
                raise ValueError(f"unknown modality {name!r}; choose from {', '.join(MODALITIES)}")
        if len(set(names)) != len(names):
            raise ValueError("a modality stands twice")
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
            raise ValueError(f"crop is [{crop[0]}, {crop[1]}]; it must rise, above 0 and up to 1")
        return crop

    def get_modalities(self) -> list[Modality]:
        """The modalities themselves."""
        return [get_modality(name, flow_style=self.flow_style) for name in self.modalities]


# View settings from a file: one of their own, or the section `views` of a training run's.


def load_view_config(path: Path | None, overrides: Sequence[str] = ()) -> ViewConfig:
    """Settings of the file (or the defaults), with `key=value` or `views.key=value` overrides."""
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
