"""Detect the layout of a checkpoint file, and the registered encoder that its tensors fit.

The fit is exact: missing, unknown and misshapen tensors are errors that name the keys.
"""

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
STATE_DICT_KEYS = ("state", "state_dict", "model", "model_state_dict")  # of the state dict in a checkpoint
WRAPPER_NAMES = ("module", "_orig_mod")  # added to keys by DataParallel and torch.compile
MIN_MATCHED_KEYS = 20  # fewer known keys are a coincidence
MAX_LISTED = 4  # keys in an error message

Shape = tuple[int, ...]


@dataclass(frozen=True)
class DetectedLayout:
    """A layout, those of its branches that the file has, and the native key of each file key (without prefix)."""

    layout: CheckpointLayout
    branches: tuple[Branch, ...]
    to_native: Mapping[str, str]


def unwrap_state_dict(file: CheckpointFile) -> tuple[StateDict, list[str]]:
    """Return the tensors with `module.` and the like removed from their keys, and the other entries of the file."""
    outer = file.values
    wrapper = next((key for key in STATE_DICT_KEYS if isinstance(outer.get(key), Mapping)), None)
    inner = outer if wrapper is None else outer[wrapper]
    state = {_strip_wrappers(str(name)): value for name, value in inner.items() if isinstance(value, Tensor)}
    if not state:
        entries = ", ".join(f"{key} ({type(value).__name__})" for key, value in list(outer.items())[:8])
        raise ValueError(f"{file.path} has no state dict; its entries: {entries or 'none'}")
    rest = [str(name) for name, value in inner.items() if not isinstance(value, Tensor)]
    return state, rest + ([key for key in outer if key != wrapper] if wrapper is not None else [])


def detect_layout(file: CheckpointFile, state: StateDict) -> DetectedLayout:
    """Return the layout with the most matching keys; raise ValueError if no layout matches."""
    native = native_layout(file)
    layouts = (native,) if native else EXTERNAL_LAYOUTS
    num_matched, best = max((_match_layout(layout, state) for layout in layouts), key=lambda match: match[0])
    if num_matched >= MIN_MATCHED_KEYS:
        return best
    known = "; ".join(layout.name for layout in layouts)
    names = ", ".join(list(state)[:4])
    raise ValueError(f"{file.path} has an unknown layout ({len(state)} tensors: {names}, ...); known layouts: {known}")


def expected_shapes(encoder: str) -> dict[str, Shape]:
    """Return the native state-dict keys and shapes of an encoder with 3 input channels."""
    return dict(_expected_shapes(encoder))


@lru_cache
def first_conv(encoder: str) -> str:
    """Return the state-dict key of the first convolution's weight."""
    with torch.device("meta"):
        return create_model(encoder).first_conv


def _match_layout(layout: CheckpointLayout, state: StateDict) -> tuple[int, DetectedLayout]:
    """Return the number of matching keys in the best branch, and the layout with the branches that the file has."""
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
    """Return the keys of all `encoders`. They are an argument because users may register more."""
    return frozenset(key for encoder in encoders for key, _ in _expected_shapes(encoder))


def _strip_wrappers(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in WRAPPER_NAMES)


def match_encoder(
    state: StateDict, *, requested: str | None, layout: CheckpointLayout, branch: Branch, location: str
) -> str:
    """Return the encoder with exactly the keys and shapes of `state`; the number of input channels may differ.

    With `requested` only that encoder is tried. If none fits, raise ValueError with the mismatches of the closest.
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
    which = closest if requested else f"any encoder; the closest is {closest}"
    raise ValueError(f"{location} ({layout.name}, {branch.stored_name}) does not fit {which}: {message}")


def check_unknown_keys(names: Iterable[str], layout: CheckpointLayout, branch: Branch, *, location: str) -> None:
    """Raise ValueError if the encoder has unknown tensors: a deeper network must not be read as a shallow one."""
    allowed_extra = tuple(branch.encoder_prefix + prefix for prefix in layout.allowed_extra)
    unknown = [name for name in names if name.startswith(branch.encoder_prefix) and not name.startswith(allowed_extra)]
    if unknown:
        raise ValueError(
            f"{location} ({layout.name}, {branch.stored_name}) has {len(unknown)} encoder tensors that "
            f"no registered encoder has: {_abbreviate(unknown)}"
        )


def _mismatches(state: StateDict, encoder: str, layout: CheckpointLayout, branch: Branch) -> dict[str, list[str]]:
    expected, first = expected_shapes(encoder), first_conv(encoder)
    misshapen = []
    for key in state.keys() & expected.keys():
        shape, expected_shape = list(state[key].shape), list(expected[key])
        if key == first and len(shape) == len(expected_shape):
            shape[1] = expected_shape[1]  # any number of input channels
        if shape != expected_shape:
            misshapen.append(f"{key} has shape {tuple(state[key].shape)}, expected {expected[key]}")
    missing = [branch.encoder_prefix + (layout.file_keys(key) or (key,))[0] for key in expected.keys() - state.keys()]
    return {
        "missing": sorted(missing),
        "unexpected": sorted(state.keys() - expected.keys()),
        "of wrong shape": sorted(misshapen),
    }


def _abbreviate(keys: list[str]) -> str:
    return ", ".join(keys[:MAX_LISTED]) + (f" and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else "")
