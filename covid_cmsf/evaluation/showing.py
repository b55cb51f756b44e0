"""How a video is shown to an encoder: modality, clip length, size, normalization, and the protocol.

Two protocols: `clean` is deterministic and treats gallery and query alike; `coclr` does what the code of Han et al.
(2020) does, random clips and colors included, so that results can stand beside published tables.
"""

# C channels, T frames, H W pixels

from dataclasses import replace
from typing import Literal, get_args

import torch
from pydantic import Field
from torch import Tensor

from covid_cmsf.config import Settings, validate
from covid_cmsf.models import EncoderCard
from covid_cmsf.views.augmentation import Augmentation, preset
from covid_cmsf.views.draws import ViewDraw
from covid_cmsf.views.making import finish_view
from covid_cmsf.views.modalities import MODALITIES, FlowStyle, Modality, modality

ProtocolName = Literal["clean", "coclr"]
NUM_WINDOWS = 4  # of the clean protocol; a single frame is the center frame


class Showing(Settings):
    """Everything that decides which numbers enter the encoder. It stands in every features file and every result."""

    protocol: ProtocolName = "clean"
    modality: str
    flow_style: FlowStyle = "motion"
    mean: tuple[float, ...]
    std: tuple[float, ...]
    length: int = Field(ge=1, description="frames of a window")
    stride: int = Field(ge=1, description="frames from one to the next")
    size: int = Field(ge=8, description="pixels, height and width")
    num_windows: int = Field(ge=1, description="of a video, evenly spread; protocol coclr has its own rule")
    seed: int = Field(default=0, ge=0, description="of the random clips and colors of protocol coclr")

    @property
    def flow_as_codes(self) -> bool:
        """Two channels of flow whose mean is not 0: a CoCLR network cut to (x, y), which expects bytes / 255."""
        return self.modality == "flow" and self.flow_style == "motion" and any(self.mean)

    def chosen(self) -> Modality:
        """The modality with the encoder's own mean and standard deviation."""
        usual = modality(self.modality, flow_style=self.flow_style)
        return replace(usual, std=(1.0, 1.0)) if self.flow_as_codes else replace(usual, mean=self.mean, std=self.std)

    def augmentation(self) -> Augmentation:
        """The center square; protocol coclr shakes the colors of three videos in ten, as its authors' code does."""
        center = preset("eval", self.chosen().kind, size=self.size)
        if self.protocol == "clean":
            return center
        shaken = {"jitter": 0.3, "brightness": 0.2, "contrast": 0.2, "saturation": 0.2, "hue": 0.1}
        return center.model_copy(update=shaken)

    def finish(self, codes: Tensor, draw: ViewDraw, flow_bound: float) -> Tensor:
        """Cut frames, uint8 (T, C, H, W) -> what the encoder sees: float (C, T, H, W), or (C, H, W) of one frame."""
        view = finish_view(codes, draw, self.chosen(), flow_bound=flow_bound)
        if not self.flow_as_codes:
            return view
        mean, std = (torch.tensor(values, device=view.device).view(-1, 1, 1, 1) for values in (self.mean, self.std))
        return (view / (2 * flow_bound) + 0.5 - mean) / std


def showing_for(
    card: EncoderCard,
    *,
    protocol: str = "clean",
    modality: str | None = None,
    length: int | None = None,
    size: int | None = None,
    stride: int | None = None,
    num_windows: int | None = None,
    seed: int = 0,
) -> Showing:
    """As the card says the encoder was trained, unless told otherwise; ValueError when the card does not say."""
    if protocol not in get_args(ProtocolName):
        raise ValueError(f"unknown protocol {protocol!r}; choose from {', '.join(get_args(ProtocolName))}")
    if protocol == "coclr" and num_windows is not None:
        raise ValueError("protocol coclr has its own windows; a number of windows goes with protocol clean")
    seen = _modality_of(card, modality)
    frames, height, width = card.input_size
    if size is None and height != width:
        raise ValueError(f"the encoder was trained on {height}x{width} pixels; say at which square size to show it")
    single = seen.single_frame
    values = {
        "protocol": protocol,
        "modality": seen.name,
        "flow_style": "coclr" if seen.stored == "flow" and not seen.signed_x else "motion",
        "mean": seen.mean if seen.differences else card.mean,
        "std": seen.std if seen.differences else card.std,
        "length": 1 if single else frames if length is None else length,
        "stride": 1 if single else card.stride if stride is None else stride,
        "size": height if size is None else size,
        "num_windows": (1 if single else NUM_WINDOWS) if num_windows is None else num_windows,
        "seed": seed,
    }
    return validate(Showing, values, place="how videos are shown to the encoder")


def _modality_of(card: EncoderCard, wanted: str | None) -> Modality:
    """The modality that this encoder takes; for flow, the number of channels tells how it wants it."""
    name = card.modality if wanted is None else wanted
    if name == "unknown":
        raise ValueError(
            f"the weights do not say which modality they were trained on; give one of {', '.join(MODALITIES)}"
        )
    seen = modality(name, flow_style="coclr" if card.in_channels == 3 else "motion")
    if seen.num_channels != card.in_channels:
        raise ValueError(f"this {card.encoder} takes {card.in_channels} channels, and {name} has {seen.num_channels}")
    return seen
