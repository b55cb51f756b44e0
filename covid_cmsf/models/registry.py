"""Registry of the encoders.

create_model("s3d", in_channels=2)
list_models()                        # ['c21d_tiny', 'r18', 'r18_cifar', 'r50', 's3d', ...]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from covid_cmsf.models.checkpoints.metadata import Size
from covid_cmsf.models.encoder import Encoder

BN_EPS = 1e-5  # PyTorch's and CoCLR's; torchvision trained its S3D with 1e-3


class EncoderBuilder(Protocol):
    """Function that builds an encoder."""

    def __call__(self, name: str, *, in_channels: int, bn_eps: float) -> Encoder: ...


@dataclass(frozen=True)
class EncoderEntry:
    """Registry entry of an encoder; `default_input_size` is (T, H, W)."""

    name: str
    build: EncoderBuilder
    default_input_size: Size
    summary: str


_REGISTRY: dict[str, EncoderEntry] = {}


def register_encoder(
    name: str, *, default_input_size: Size, summary: str
) -> Callable[[EncoderBuilder], EncoderBuilder]:
    """Register the decorated builder under `name`; raise ValueError if the name is taken."""

    def decorator(build: EncoderBuilder) -> EncoderBuilder:
        if name in _REGISTRY:
            raise ValueError(f"encoder {name!r} is already registered")
        _REGISTRY[name] = EncoderEntry(name, build, default_input_size, summary)
        return build

    return decorator


def list_models() -> list[str]:
    """Return the names of the registered encoders, sorted.

    Example:
        >>> cc.list_models()
        ['c21d_tiny', ..., 's3d', ...]
    """
    return sorted(_REGISTRY)


def encoder_entry(name: str) -> EncoderEntry:
    """Return the entry of `name`; raise ValueError with the choices if there is none."""
    if name not in _REGISTRY:
        raise ValueError(f"unknown encoder {name!r}; choose from {', '.join(list_models())}")
    return _REGISTRY[name]


def create_model(name: str, *, in_channels: int = 3, bn_eps: float = BN_EPS) -> Encoder:
    """Create an encoder with random weights, in train mode.

    Example:
        >>> encoder = cc.create_model("s3d_tiny", in_channels=2)  # for flow
    """
    entry = encoder_entry(name)
    if in_channels < 1:
        raise ValueError(f"encoder {name!r}: in_channels = {in_channels}, at least 1 is needed")
    if not bn_eps > 0:
        raise ValueError(f"encoder {name!r}: bn_eps = {bn_eps}, a number above 0 is needed")
    return entry.build(name, in_channels=in_channels, bn_eps=bn_eps)
