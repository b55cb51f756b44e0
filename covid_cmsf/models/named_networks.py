"""Networks of other libraries, by name: `timm:NAME`, `torchvision:NAME`, `transformers:FOLDER`. They are frozen.

Their own preprocessing comes with them. A library is one module that loads its networks, and one entry of `LIBRARIES`.
A network has `metadata`: its input.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.image_networks import create_image_network, image_weights_file, load_image_network
from covid_cmsf.models.input_transform import InputTransform
from covid_cmsf.models.library_weights import LibraryNetwork, LoadedNetwork
from covid_cmsf.models.transformers_networks import (
    create_transformers_network,
    load_transformers_network,
    transformers_inputs,
    transformers_weights_file,
)
from covid_cmsf.models.video_networks import create_video_network, load_video_network, video_weights_file


@dataclass(frozen=True)
class Library:
    """How the networks of a library are found."""

    modality: str  # that they see
    load: Callable[[str], LoadedNetwork]  # from an address `PREFIX:NAME?weights=...`
    weights_file: Callable[[str], Path | None]  # of an address; None: downloaded or random
    create: Callable[[EncoderMetadata, str], LibraryNetwork]  # from a file's metadata (and its path, for errors)
    inputs: Callable[[str], str] = lambda address: ""  # a hash of what else determines its features


def _create_transformers(metadata: EncoderMetadata, location: str) -> LibraryNetwork:
    return create_transformers_network(metadata.encoder, metadata.settings or {}, location=location)


LIBRARIES = {
    "timm": Library("frame", load_image_network, image_weights_file, lambda one, _: create_image_network(one.encoder)),
    "torchvision": Library(
        "rgb", load_video_network, video_weights_file, lambda one, _: create_video_network(one.encoder)
    ),
    "transformers": Library(
        "rgb", load_transformers_network, transformers_weights_file, _create_transformers, transformers_inputs
    ),
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


def rebuild_named_network(metadata: EncoderMetadata, state: Mapping[str, Tensor], *, location: str) -> LibraryNetwork:
    """Return the network that a file of this package has, with exactly these tensors; `location` is the file.

    Raises:
        ValueError: its library is not installed, or has other tensors for it.
    """
    library = named_library(metadata.encoder)
    assert library is not None
    _check_depth(metadata.settings, len(state), location)
    with torch.device("meta"):  # before a network of that size is allocated
        expected = {key: one.shape for key, one in library.create(metadata, location).state_dict().items()}
    found = {key: one.shape for key, one in state.items()}
    if wrong := sorted(key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)):
        raise ValueError(
            f"{location} does not fit {metadata.encoder} as its library has it now: {len(wrong)} tensors are missing, "
            f"unknown or of another shape: {wrong[0]}"
        )
    network = library.create(metadata, location)
    network.load_state_dict(state, strict=True)
    network.metadata = metadata
    return network


def _check_depth(settings: Mapping[str, Any] | None, num_tensors: int, location: str) -> None:
    """Raise ValueError if a configuration has more layers than the file has tensors: nothing of that size is built."""
    config = (settings or {}).get("config") or {}
    for name, value in config.items() if isinstance(config, Mapping) else ():
        if name.endswith("_layers") and isinstance(value, int) and value > num_tensors:
            raise ValueError(f"{location}: {name}={value} in its settings, and {num_tensors} tensors")


def own_transform(loaded: LoadedNetwork) -> InputTransform:
    """Return the network's own preprocessing: size, center square, mean and standard deviation."""
    return InputTransform.from_metadata(loaded.network.metadata)
