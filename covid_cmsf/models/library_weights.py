"""Weights of networks of other libraries: their address, and loading every tensor or none."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from covid_cmsf.clips.images.uri import parse_options
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.encoder import Encoder

HUB = "hub"  # weights=hub: download them


class LibraryNetwork(Encoder):
    """A network of another library without its classifier; its metadata says what it takes."""

    metadata: EncoderMetadata

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return the feature map (B, num_map_features, t, h, w); N tokens without places are (B, D, N, 1, 1).

        `forward` pools as the library does, which need not be the mean.
        """
        raise NotImplementedError


@dataclass(frozen=True)
class LoadedNetwork:
    """A frozen network; `path` is its weights file, None if they were downloaded or are random."""

    network: LibraryNetwork
    path: Path | None
    is_random: bool = False


def tokens_to_map(tokens: Tensor) -> Tensor:
    """Return tokens (B, N, D) as a feature map (B, D, N, 1, 1)."""
    return tokens.transpose(1, 2)[..., None, None]


def split_address(address: str) -> tuple[str, str]:
    """Return the name and the option `weights` of `PREFIX:NAME?weights=...`, empty if there is none."""
    location, _, query = address.partition("?")
    return location.partition(":")[2], parse_options(address, query, ("weights",)).get("weights", "")


def load_state_(network: Encoder, state: Mapping[str, Tensor], *, location: str) -> None:
    """Load every tensor of the network from a state dict of its library, or of a project with the same tensors.

    Tensors of a classifier are left out. Names of another project are accepted if all tensors have the same order,
    last part of the name (weight, running_mean, ...) and shape.
    """
    trunk: nn.Module = network.trunk[0]
    expected = trunk.state_dict()
    if not expected.keys() <= state.keys():
        state = _rename_by_order(expected, state, location=location, name=network.name)
    found = {key: state[key] for key in expected}
    if wrong := [key for key in expected if found[key].shape != expected[key].shape]:
        key = wrong[0]
        raise ValueError(
            f"{location}: {key} has shape {tuple(found[key].shape)}, {network.name} needs {tuple(expected[key].shape)}"
        )
    trunk.load_state_dict(found, strict=True)


def _rename_by_order(
    expected: Mapping[str, Tensor], state: Mapping[str, Tensor], *, location: str, name: str
) -> dict[str, Tensor]:
    renamed = {}
    for (key, tensor), (other_key, other) in zip(expected.items(), state.items(), strict=False):
        if tensor.shape != other.shape or key.split(".")[-1] != other_key.split(".")[-1]:
            break
        renamed[key] = other
    if len(renamed) < len(expected):
        key = list(expected)[len(renamed)]
        raise ValueError(f"{location} does not fit {name}: it has no {key} {tuple(expected[key].shape)}")
    return renamed
