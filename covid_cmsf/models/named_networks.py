"""Networks of other libraries, by name: `timm:NAME`, `torchvision:NAME`, `transformers:FOLDER`. They are frozen.

Their own preprocessing comes with them. A library is one module that loads its networks, and one entry of `LIBRARIES`.
A network has `metadata`: its input.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from covid_cmsf.models.image_networks import image_weights_file, load_image_network
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.models.library_weights import LoadedNetwork
from covid_cmsf.models.transformers_networks import (
    load_transformers_network,
    transformers_inputs,
    transformers_weights_file,
)
from covid_cmsf.models.video_networks import load_video_network, video_weights_file


@dataclass(frozen=True)
class Library:
    """How the networks of a library are found."""

    modality: str  # that they see
    load: Callable[[str], LoadedNetwork]  # from an address `PREFIX:NAME?weights=...`
    weights_file: Callable[[str], Path | None]  # of an address; None: downloaded or random
    inputs: Callable[[str], str] = lambda address: ""  # a hash of what else determines its features


LIBRARIES = {
    "timm": Library("frame", load_image_network, image_weights_file),
    "torchvision": Library("rgb", load_video_network, video_weights_file),
    "transformers": Library("rgb", load_transformers_network, transformers_weights_file, transformers_inputs),
}


def named_library(address: str | Path) -> Library | None:
    """Return the library of an address such as `timm:NAME`; None for the path of a file."""
    prefix, colon, _ = str(address).partition(":")
    return LIBRARIES.get(prefix) if colon else None


def network_name(address: str) -> str:
    """Return the name within the library: `resnet50` of `timm:resnet50?weights=hub`; of a path, its last part."""
    return address.partition(":")[2].partition("?")[0].rstrip("/").rpartition("/")[2]


def load_named_network(address: str) -> LoadedNetwork:
    """Load a frozen network with its weights.

    Raises:
        ValueError: no such library or network, or there are no weights for it or they do not fit.
        FileNotFoundError: there is no such weights file.
    """
    library = named_library(address)
    if library is None:
        raise ValueError(f"{address!r} names no network; it begins with one of {', '.join(f'{o}:' for o in LIBRARIES)}")
    return library.load(address)


def own_transform(loaded: LoadedNetwork) -> InputTransform:
    """Return the network's own preprocessing: size, center square, mean and standard deviation."""
    return InputTransform.from_metadata(loaded.network.metadata)
