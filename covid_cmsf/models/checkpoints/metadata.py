"""Metadata of an encoder, stored with its weights: architecture, input, normalization, training."""

import json
from typing import Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from covid_cmsf.clips.records import FlowInfo
from covid_cmsf.config import Config, validate
from covid_cmsf.models.heads import HeadLayout
from covid_cmsf.views.resize import Resize

FORMAT = 2  # format 1 had neither `short_edge` nor `flow`
NEWER = ("crop", "fps", "resize", "settings")
Size = tuple[int, int, int]  # (T, H, W)


class EncoderMetadata(Config):
    """Name, input and origin of an encoder; `mean` and `std` are of pixels from 0 to 1, one per channel.

    Example:
        >>> metadata = cc.load_encoder("encoder.safetensors").metadata
        >>> metadata.modality, metadata.input_size
        ('rgb', (6, 24, 24))
    """

    format: int = FORMAT
    encoder: str
    in_channels: int = Field(ge=1)
    input_size: Size  # (T, H, W)
    stride: int = Field(default=1, ge=1)  # between sampled frames
    mean: tuple[float, ...]
    std: tuple[float, ...]
    modality: str = "unknown"
    bn_eps: float = Field(gt=0)
    trained: str = "unknown"
    projector: HeadLayout | None = None
    short_edge: int | None = Field(default=None, ge=0)  # of the clips it was trained on; 0: native; None: unknown
    flow: FlowInfo | None = None  # how their flow was computed and quantized; None: unknown, or no flow network
    fps: float | None = Field(default=None, gt=0)  # that they were resampled to; None: each video's own
    crop: float | None = Field(default=None, gt=0, le=1)  # center square, share of the short edge; None: the modality's
    resize: Resize | None = None  # of whole frames, before the crop; None: crop, then resize (bilinear)
    settings: dict[str, Any] | None = None  # what else makes a network of another library: its configuration

    @model_serializer(mode="wrap")
    def _omit_newer(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out newer values that are not given: files stay readable for versions that do not know them."""
        return {key: value for key, value in handler(self).items() if key not in NEWER or value is not None}

    @model_validator(mode="after")
    def _check_channels(self) -> "EncoderMetadata":
        if not len(self.mean) == len(self.std) == self.in_channels:
            raise ValueError(
                f"mean and std need one value for each of {self.in_channels} channels, "
                f"not {len(self.mean)} and {len(self.std)}"
            )
        if min(self.std) <= 0 or min(self.input_size) < 1:
            raise ValueError(f"std {self.std} and input_size {self.input_size} must be above 0")
        return self


def parse_metadata(values: object, *, location: str) -> EncoderMetadata:
    """Return the metadata from a mapping or its JSON text; raise ValueError naming `location` if it is invalid."""
    if isinstance(values, str):
        try:
            values = json.loads(values)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{location}: the encoder metadata is not JSON ({error})") from None
    if not isinstance(values, dict):
        raise ValueError(f"{location}: the encoder metadata must be a mapping, not a {type(values).__name__}")
    version = values.get("format", FORMAT)
    if version not in (1, FORMAT):
        raise ValueError(f"{location} has format {version!r}; this version reads formats 1 and {FORMAT}")
    return validate(EncoderMetadata, values, origin=location)


def override_metadata(
    metadata: EncoderMetadata,
    *,
    modality: str | None = None,
    trained: str | None = None,
    input_size: Size | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
) -> EncoderMetadata:
    """Return the metadata with the given fields replaced; None keeps a field."""
    given = {"modality": modality, "trained": trained, "input_size": input_size, "mean": mean, "std": std}
    updates = {field: value for field, value in given.items() if value is not None}
    return validate(EncoderMetadata, {**metadata.model_dump(), **updates}, origin="the command line")


def parse_channel_values(text: str) -> tuple[float, ...]:
    """Parse `0.5,0.25` into (0.5, 0.25), one value per channel."""
    try:
        return tuple(float(value) for value in text.split(","))
    except ValueError:
        raise ValueError(f"{text!r} is not a list of numbers such as 0.5,0.25") from None
