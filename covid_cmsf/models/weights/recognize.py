"""Which layout does a file have, and which encoder of the zoo do its tensors fit?"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from covid_cmsf.models.registry import create_encoder, encoder_names
from covid_cmsf.models.weights import coclr, self_supervised_resnets, torchvision_files
from covid_cmsf.models.weights.files import WeightsFile
from covid_cmsf.models.weights.layout import Layout, Part, StateDict, inverse
from covid_cmsf.models.weights.ours import our_layout

FOREIGN = (
    coclr.PRETRAINING,
    coclr.CLASSIFIER,
    coclr.BACKBONE,
    torchvision_files.S3D_FILE,
    torchvision_files.RESNET_FILE,
    self_supervised_resnets.PRETRAINING,
)
WRAPPERS = ("state", "state_dict", "model", "model_state_dict")  # where programs put the state dict
PARALLEL = ("module", "_orig_mod")  # what DataParallel and torch.compile put into names
FEWEST_KEYS = 20  # fewer familiar names than this are a coincidence

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Recognized:
    """A layout and those of its parts that the file holds, and what each of the file's names means to us."""

    layout: Layout
    parts: tuple[Part, ...]
    to_ours: Mapping[str, str]


def state_of(file: WeightsFile) -> tuple[StateDict, list[str]]:
    """The tensors of a file under names without wrappers, and the outer entries that are no state dict."""
    outer = file.values
    wrapper = next((key for key in WRAPPERS if isinstance(outer.get(key), Mapping)), None)
    inner = outer if wrapper is None else outer[wrapper]
    state = {_bare(str(name)): value for name, value in inner.items() if isinstance(value, Tensor)}
    if not state:
        held = ", ".join(f"{key} ({type(value).__name__})" for key, value in list(outer.items())[:8])
        raise ValueError(f"{file.path} holds no state dict; its entries: {held or 'none'}")
    rest = [str(name) for name, value in inner.items() if not isinstance(value, Tensor)]
    return state, rest + ([key for key in outer if key != wrapper] if wrapper is not None else [])


def recognize(file: WeightsFile, state: StateDict) -> Recognized:
    """The layout that explains most of the file; ValueError when none does."""
    ours = our_layout(file)
    candidates = [_found(layout, state) for layout in ((ours,) if ours else FOREIGN)]
    best = max(candidates, key=lambda candidate: candidate[0])
    if best[0] >= FEWEST_KEYS:
        return best[1]
    known = "; ".join(layout.name for layout in ((ours,) if ours else FOREIGN))
    names = ", ".join(list(state)[:4])
    raise ValueError(
        f"{file.path} has a layout that is not known here ({len(state)} tensors: {names}, ...); known: {known}"
    )


def expected_shapes(encoder: str) -> dict[str, Shape]:
    """Our state-dict keys and shapes of an encoder with 3 input channels."""
    return dict(_expected_shapes(encoder))


@lru_cache
def first_conv(encoder: str) -> str:
    """The key of the convolution that sees the pixels."""
    with torch.device("meta"):
        return create_encoder(encoder).first_conv


def _found(layout: Layout, state: StateDict) -> tuple[int, Recognized]:
    """How many of the file's names the layout knows in its best part, and the parts it finds."""
    to_ours = inverse(layout, _all_keys(tuple(encoder_names())))
    counts = {
        part: sum(name.startswith(part.encoder) and name.removeprefix(part.encoder) in to_ours for name in state)
        for part in layout.parts
    }
    parts = tuple(part for part, count in counts.items() if count >= FEWEST_KEYS)
    return max(counts.values()), Recognized(layout, parts, to_ours)


@lru_cache
def _expected_shapes(encoder: str) -> tuple[tuple[str, Shape], ...]:
    with torch.device("meta"):
        state = create_encoder(encoder).state_dict()
    return tuple((key, tuple(tensor.shape)) for key, tensor in state.items())


@lru_cache
def _all_keys(encoders: tuple[str, ...]) -> frozenset[str]:
    """Of these encoders: the zoo of this moment, which users may add to."""
    return frozenset(key for encoder in encoders for key, _ in _expected_shapes(encoder))


def _bare(name: str) -> str:
    return ".".join(word for word in name.split(".") if word not in PARALLEL)
