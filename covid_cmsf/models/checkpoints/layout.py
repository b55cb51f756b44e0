"""The layout of a checkpoint: how its keys map to native keys, for reading and writing.

"Native" keys are those of `Encoder.state_dict()`. A layout maps each of them to its keys in the file (several if the
file stores the tensor more than once), and lists the prefixes of the branches: online network, target, guide.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covid_cmsf.views.modalities import IMAGENET_MEAN, IMAGENET_STD

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class Branch:
    """One copy of the encoder in a file, and the prefixes of its keys."""

    name: str  # online, target or guide
    stored_name: str  # its name in the file
    encoder_prefix: str  # prefix of the encoder's keys
    head_prefix: str | None = None  # prefix of its projector's keys


@dataclass(frozen=True)
class CheckpointLayout:
    """A mapping between native keys and file keys, and the normalization that such encoders were trained with.

    `file_keys(native_key)` returns the keys in the file, without the branch's prefix; () if the format has none.
    """

    name: str
    branches: tuple[Branch, ...]
    file_keys: Callable[[str], tuple[str, ...]]
    head_layers: Mapping[str, str] = field(default_factory=dict)  # index in the file -> index in `MLP`; equal if empty
    allowed_extra: tuple[str, ...] = ()  # prefixes of keys below `encoder_prefix` that are not the encoder's
    bn_eps: float = 1e-5
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    has_metadata: bool = False


@dataclass(frozen=True)
class ExtractedTensors:
    """Tensors by native key, and the file keys that they were read from."""

    state: StateDict
    used: frozenset[str]

    @property
    def num_duplicates(self) -> int:
        """Return how many tensors the file stores a second time."""
        return len(self.used) - len(self.state)


def invert_keys(layout: CheckpointLayout, native_keys: Iterable[str]) -> dict[str, str]:
    """Return a mapping from file key (without prefix) to native key."""
    return {file_key: native for native in native_keys for file_key in layout.file_keys(native)}


def extract_encoder(state: StateDict, branch: Branch, to_native: Mapping[str, str]) -> ExtractedTensors:
    """Return the encoder of one branch; raise ValueError if two copies of a tensor differ."""
    tensors: StateDict = {}
    used: dict[str, str] = {}  # file key -> native key
    for name, tensor in state.items():
        if not name.startswith(branch.encoder_prefix):
            continue
        native = to_native.get(name.removeprefix(branch.encoder_prefix))
        if native is None:
            continue
        if native in tensors and not torch.equal(tensors[native], tensor):
            first = next(other for other, key in used.items() if key == native)
            raise ValueError(f"{first} and {name} should be copies of one tensor, but their values differ")
        tensors[native] = tensor
        used[name] = native
    return ExtractedTensors(tensors, frozenset(used))


def extract_head(state: StateDict, branch: Branch, layers: Mapping[str, str]) -> ExtractedTensors:
    """Return the projector of one branch with the keys of `MLP`; 1x1x1 convolutions become linear layers."""
    tensors: StateDict = {}
    used = set()
    for name, tensor in state.items():
        if branch.head_prefix is None or not name.startswith(branch.head_prefix):
            continue
        layer, _, value = name.removeprefix(branch.head_prefix).rpartition(".")
        layer = layers.get(layer, "") if layers else layer or "0"
        if layer.isdigit():
            tensors[f"{layer}.{value}"] = tensor.flatten(1) if tensor.dim() > 2 else tensor
            used.add(name)
    return ExtractedTensors(tensors, frozenset(used))
