"""How a family of files names its tensors, as data: the same table serves reading and writing.

A layout maps each of our state-dict keys to the names it has in the file (several when the file repeats it), and
says under which prefixes the copies of the encoder stand: the online network, its target, a guide.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from covid_cmsf.models.weights.card import IMAGENET_MEAN, IMAGENET_STD

StateDict = dict[str, Tensor]


@dataclass(frozen=True)
class Part:
    """One copy of the encoder in a file: our name, the file's name, and where its tensors stand."""

    name: str  # online, target or guide
    file_name: str
    encoder: str  # prefix of the encoder's keys
    head: str | None = None  # prefix of its projector's keys


@dataclass(frozen=True)
class Layout:
    """`their_names(our_key)`: the names in the file, without the part's prefix; none when it has no place there."""

    name: str
    parts: tuple[Part, ...]
    their_names: Callable[[str], tuple[str, ...]]
    head_layers: Mapping[str, str] = field(default_factory=dict)  # file's index -> ours; same when empty
    beside: tuple[str, ...] = ()  # what may stand under an encoder's prefix without belonging to it
    bn_eps: float = 1e-5
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    has_card: bool = False


@dataclass(frozen=True)
class Gathered:
    """Tensors under our names, and the file's names that were used for them."""

    state: StateDict
    used: frozenset[str]

    @property
    def num_twins(self) -> int:
        return len(self.used) - len(self.state)


def inverse(layout: Layout, our_keys: Iterable[str]) -> dict[str, str]:
    """Name in the file (without prefix) -> our key."""
    return {theirs: ours for ours in our_keys for theirs in layout.their_names(ours)}


def gather_encoder(state: StateDict, part: Part, to_ours: Mapping[str, str]) -> Gathered:
    """The encoder of one part. A tensor that stands there under two names must have the same values in both."""
    taken: StateDict = {}
    used: dict[str, str] = {}  # the file's name -> ours
    for name, tensor in state.items():
        ours = to_ours.get(name.removeprefix(part.encoder)) if name.startswith(part.encoder) else None
        if ours is None:
            continue
        if ours in taken and not torch.equal(taken[ours], tensor):
            first = next(other for other, key in used.items() if key == ours)
            raise ValueError(f"{first} and {name} should be one tensor under two names, but their values differ")
        taken[ours] = tensor
        used[name] = ours
    return Gathered(taken, frozenset(used))


def gather_head(state: StateDict, part: Part, layers: Mapping[str, str]) -> Gathered:
    """The projector of one part under the names of our MLP; 1x1x1 convolutions become linear layers."""
    taken: StateDict = {}
    used = set()
    for name, tensor in state.items():
        if part.head is None or not name.startswith(part.head):
            continue
        layer, _, value = name.removeprefix(part.head).rpartition(".")
        layer = layers.get(layer, "") if layers else layer or "0"
        if layer.isdigit():
            taken[f"{layer}.{value}"] = tensor.flatten(1) if tensor.dim() > 2 else tensor
            used.add(name)
    return Gathered(taken, frozenset(used))
