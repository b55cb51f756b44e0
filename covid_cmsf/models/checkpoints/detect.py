"""Which layout does a file have, and which encoder of the zoo do its tensors fit?"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from covid_cmsf.models.checkpoints.formats import coclr, ssl_resnet, torchvision
from covid_cmsf.models.checkpoints.formats.native import native_layout
from covid_cmsf.models.checkpoints.layout import Branch, CheckpointLayout, StateDict, invert_keys
from covid_cmsf.models.checkpoints.reader import CheckpointFile
from covid_cmsf.models.registry import create_model, list_models

EXTERNAL_LAYOUTS = (
    coclr.PRETRAINING_LAYOUT,
    coclr.CLASSIFIER_LAYOUT,
    coclr.BACKBONE_LAYOUT,
    torchvision.S3D_LAYOUT,
    torchvision.RESNET_LAYOUT,
    ssl_resnet.PRETRAINING_LAYOUT,
)
STATE_DICT_KEYS = ("state", "state_dict", "model", "model_state_dict")  # where programs put the state dict
WRAPPER_NAMES = ("module", "_orig_mod")  # what DataParallel and torch.compile put into names
MIN_MATCHED_KEYS = 20  # fewer familiar names than this are a coincidence

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DetectedLayout:
    """A layout and those of its branches that the file holds, and what each of the file's names means to us."""

    layout: CheckpointLayout
    branches: tuple[Branch, ...]
    to_native: Mapping[str, str]


def unwrap_state_dict(file: CheckpointFile) -> tuple[StateDict, list[str]]:
    """The tensors of a file under names without wrappers, and the outer entries that are no state dict."""
    outer = file.values
    wrapper = next((key for key in STATE_DICT_KEYS if isinstance(outer.get(key), Mapping)), None)
    inner = outer if wrapper is None else outer[wrapper]
    state = {_strip_wrappers(str(name)): value for name, value in inner.items() if isinstance(value, Tensor)}
    if not state:
        held = ", ".join(f"{key} ({type(value).__name__})" for key, value in list(outer.items())[:8])
        raise ValueError(f"{file.path} holds no state dict; its entries: {held or 'none'}")
    rest = [str(name) for name, value in inner.items() if not isinstance(value, Tensor)]
    return state, rest + ([key for key in outer if key != wrapper] if wrapper is not None else [])


def detect_layout(file: CheckpointFile, state: StateDict) -> DetectedLayout:
    """The layout that explains most of the file; ValueError when none does."""
    ours = native_layout(file)
    candidates = [_match_layout(layout, state) for layout in ((ours,) if ours else EXTERNAL_LAYOUTS)]
    best = max(candidates, key=lambda candidate: candidate[0])
    if best[0] >= MIN_MATCHED_KEYS:
        return best[1]
    known = "; ".join(layout.name for layout in ((ours,) if ours else EXTERNAL_LAYOUTS))
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
        return create_model(encoder).first_conv


def _match_layout(layout: CheckpointLayout, state: StateDict) -> tuple[int, DetectedLayout]:
    """How many of the file's names the layout knows in its best branch, and the branches it finds."""
    to_native = invert_keys(layout, _known_keys(tuple(list_models())))
    counts = {
        branch: sum(
            name.startswith(branch.encoder_prefix) and name.removeprefix(branch.encoder_prefix) in to_native
            for name in state
        )
        for branch in layout.branches
    }
    branches = tuple(branch for branch, count in counts.items() if count >= MIN_MATCHED_KEYS)
    return max(counts.values()), DetectedLayout(layout, branches, to_native)


@lru_cache
def _expected_shapes(encoder: str) -> tuple[tuple[str, Shape], ...]:
    with torch.device("meta"):
        state = create_model(encoder).state_dict()
    return tuple((key, tuple(tensor.shape)) for key, tensor in state.items())


@lru_cache
def _known_keys(encoders: tuple[str, ...]) -> frozenset[str]:
    """Of these encoders: the zoo of this moment, which users may add to."""
    return frozenset(key for encoder in encoders for key, _ in _expected_shapes(encoder))


def _strip_wrappers(name: str) -> str:
    return ".".join(word for word in name.split(".") if word not in WRAPPER_NAMES)


# Do these tensors fit this encoder, exactly? Missing, unknown and misshapen tensors are errors with names.

MAX_LISTED = 4


def match_encoder(
    state: StateDict, *, requested: str | None, layout: CheckpointLayout, branch: Branch, location: str
) -> str:
    """The encoder whose keys and shapes are exactly those of `state`; the number of input channels is free.

    With `requested` only that one is tried. ValueError with the faults of the nearest otherwise.
    """
    mismatches = {
        name: _mismatches(state, name, layout, branch) for name in ([requested] if requested else list_models())
    }
    closest = min(mismatches, key=lambda name: sum(map(len, mismatches[name].values())))
    if not any(mismatches[closest].values()):
        return closest
    message = "; ".join(
        f"{len(keys)} {problem}: {_abbreviate(keys)}" for problem, keys in mismatches[closest].items() if keys
    )
    which = closest if requested else f"any encoder; the nearest is {closest}"
    raise ValueError(f"{location} ({layout.name}, {branch.stored_name}) does not fit {which}: {message}")


def check_unknown_keys(names: Iterable[str], layout: CheckpointLayout, branch: Branch, *, location: str) -> None:
    """ValueError when names under the encoder's prefix are not ours: a deeper network, say, cut to a shallow one."""
    allowed_extra = tuple(branch.encoder_prefix + prefix for prefix in layout.allowed_extra)
    unknown = [name for name in names if name.startswith(branch.encoder_prefix) and not name.startswith(allowed_extra)]
    if unknown:
        raise ValueError(
            f"{location} ({layout.name}, {branch.stored_name}) holds {len(unknown)} tensors of the encoder that "
            f"no encoder of the zoo has: {_abbreviate(unknown)}"
        )


def _mismatches(state: StateDict, encoder: str, layout: CheckpointLayout, branch: Branch) -> dict[str, list[str]]:
    expected, first = expected_shapes(encoder), first_conv(encoder)
    misshapen = []
    for key in state.keys() & expected.keys():
        given, needed = list(state[key].shape), list(expected[key])
        if key == first and len(given) == len(needed):
            given[1] = needed[1]  # any number of input channels
        if given != needed:
            misshapen.append(f"{key} is {tuple(state[key].shape)} and should be {expected[key]}")
    missing = [branch.encoder_prefix + (layout.file_keys(key) or (key,))[0] for key in expected.keys() - state.keys()]
    return {
        "missing": sorted(missing),
        "not of this encoder": sorted(state.keys() - expected.keys()),
        "of another shape": sorted(misshapen),
    }


def _abbreviate(keys: list[str]) -> str:
    return ", ".join(keys[:MAX_LISTED]) + (f" and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else "")
