"""How a family of files names its tensors, as data: the same table serves reading and writing.

A layout maps each of our state-dict keys to the names it has in the file (several when the file repeats it), and
says under which prefixes the copies of the encoder stand: the online network, its target, a guide.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covid_cmsf.views.modalities import IMAGENET_MEAN, IMAGENET_STD

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class Branch:
    """One copy of the encoder in a file: our name, the file's name, and where its tensors stand."""

    name: str  # online, target or guide
    stored_name: str
    encoder_prefix: str  # prefix of the encoder's keys
    head_prefix: str | None = None  # prefix of its projector's keys


@dataclass(frozen=True)
class CheckpointLayout:
    """`file_keys(native_key)`: the names in the file, without the branch's prefix; none when it has no place there."""

    name: str
    branches: tuple[Branch, ...]
    file_keys: Callable[[str], tuple[str, ...]]
    head_layers: Mapping[str, str] = field(default_factory=dict)  # file's index -> ours; same when empty
    allowed_extra: tuple[str, ...] = ()  # what may stand under an encoder's prefix without belonging to it
    bn_eps: float = 1e-5
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    has_metadata: bool = False


@dataclass(frozen=True)
class ExtractedTensors:
    """Tensors under our names, and the file's names that were used for them."""

    state: StateDict
    used: frozenset[str]

    @property
    def num_duplicates(self) -> int:
        return len(self.used) - len(self.state)


def invert_keys(layout: CheckpointLayout, native_keys: Iterable[str]) -> dict[str, str]:
    """Name in the file (without prefix) -> our key."""
    return {theirs: ours for ours in native_keys for theirs in layout.file_keys(ours)}


def extract_encoder(state: StateDict, branch: Branch, to_native: Mapping[str, str]) -> ExtractedTensors:
    """The encoder of one branch. A tensor that stands there under two names must have the same values in both."""
    tensors: StateDict = {}
    used: dict[str, str] = {}  # the file's name -> ours
    for name, tensor in state.items():
        ours = (
            to_native.get(name.removeprefix(branch.encoder_prefix)) if name.startswith(branch.encoder_prefix) else None
        )
        if ours is None:
            continue
        if ours in tensors and not torch.equal(tensors[ours], tensor):
            first = next(other for other, key in used.items() if key == ours)
            raise ValueError(f"{first} and {name} should be one tensor under two names, but their values differ")
        tensors[ours] = tensor
        used[name] = ours
    return ExtractedTensors(tensors, frozenset(used))


def extract_head(state: StateDict, branch: Branch, layers: Mapping[str, str]) -> ExtractedTensors:
    """The projector of one branch under the names of our MLP; 1x1x1 convolutions become linear layers."""
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
