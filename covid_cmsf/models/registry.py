"""The encoders by name.

create_encoder("s3d", in_channels=2)
encoder_names()                        # ['c21d_tiny', 'r18', 'r18_cifar', 'r50', 's3d', ...]
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from covid_cmsf.models.encoder import Encoder, Size

BN_EPS = 1e-5  # PyTorch's and CoCLR's; torchvision trained its S3D with 1e-3


class Build(Protocol):
    """A function that makes one encoder of the zoo."""

    def __call__(self, name: str, *, in_channels: int, bn_eps: float) -> Encoder: ...


@dataclass(frozen=True)
class Entry:
    """One line of the zoo: how to build the encoder, and the (T, H, W) it usually sees."""

    name: str
    build: Build
    usual_input: Size
    summary: str


_ENTRIES: dict[str, Entry] = {}


def register(name: str, *, usual_input: Size, summary: str) -> Callable[[Build], Build]:
    """Decorator: puts an encoder into the zoo. A name that is there already is an error."""

    def put(build: Build) -> Build:
        if name in _ENTRIES:
            raise ValueError(f"encoder {name!r} is registered twice")
        _ENTRIES[name] = Entry(name, build, usual_input, summary)
        return build

    return put


def encoder_names() -> list[str]:
    """The names of the zoo, sorted."""
    return sorted(_ENTRIES)


def encoder_entry(name: str) -> Entry:
    """The entry called `name`; ValueError with the choices otherwise."""
    if name not in _ENTRIES:
        raise ValueError(f"unknown encoder {name!r}; choose from {', '.join(encoder_names())}")
    return _ENTRIES[name]


def create_encoder(name: str, *, in_channels: int = 3, bn_eps: float = BN_EPS) -> Encoder:
    """A new encoder with random weights, in train mode."""
    entry = encoder_entry(name)
    if in_channels < 1:
        raise ValueError(f"encoder {name!r}: in_channels = {in_channels}, at least 1 is needed")
    if not bn_eps > 0:
        raise ValueError(f"encoder {name!r}: bn_eps = {bn_eps}, a number above 0 is needed")
    return entry.build(name, in_channels=in_channels, bn_eps=bn_eps)
