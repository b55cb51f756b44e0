"""Do these tensors fit this encoder, exactly? Missing, unknown and misshapen tensors are errors with names."""

from collections.abc import Iterable

from covid_cmsf.models.registry import encoder_names
from covid_cmsf.models.weights.layout import Layout, Part, StateDict
from covid_cmsf.models.weights.recognize import expected_shapes, first_conv

SHOWN = 4


def fitting_encoder(state: StateDict, *, wanted: str | None, layout: Layout, part: Part, place: str) -> str:
    """The encoder whose keys and shapes are exactly those of `state`; the number of input channels is free.

    With `wanted` only that one is tried. ValueError with the faults of the nearest otherwise.
    """
    faults = {name: _faults(state, name, layout, part) for name in ([wanted] if wanted else encoder_names())}
    nearest = min(faults, key=lambda name: sum(map(len, faults[name].values())))
    if not any(faults[nearest].values()):
        return nearest
    words = "; ".join(f"{len(keys)} {fault}: {_some(keys)}" for fault, keys in faults[nearest].items() if keys)
    which = nearest if wanted else f"any encoder; the nearest is {nearest}"
    raise ValueError(f"{place} ({layout.name}, {part.file_name}) does not fit {which}: {words}")


def check_nothing_unknown(names: Iterable[str], layout: Layout, part: Part, *, place: str) -> None:
    """ValueError when names under the encoder's prefix are not ours: a deeper network, say, cut to a shallow one."""
    beside = tuple(part.encoder + prefix for prefix in layout.beside)
    unknown = [name for name in names if name.startswith(part.encoder) and not name.startswith(beside)]
    if unknown:
        raise ValueError(
            f"{place} ({layout.name}, {part.file_name}) holds {len(unknown)} tensors of the encoder that no encoder "
            f"of the zoo has: {_some(unknown)}"
        )


def _faults(state: StateDict, encoder: str, layout: Layout, part: Part) -> dict[str, list[str]]:
    expected, first = expected_shapes(encoder), first_conv(encoder)
    misshapen = []
    for key in state.keys() & expected.keys():
        given, needed = list(state[key].shape), list(expected[key])
        if key == first and len(given) == len(needed):
            given[1] = needed[1]  # any number of input channels
        if given != needed:
            misshapen.append(f"{key} is {tuple(state[key].shape)} and should be {expected[key]}")
    missing = [part.encoder + (layout.their_names(key) or (key,))[0] for key in expected.keys() - state.keys()]
    return {
        "missing": sorted(missing),
        "not of this encoder": sorted(state.keys() - expected.keys()),
        "of another shape": sorted(misshapen),
    }


def _some(keys: list[str]) -> str:
    return ", ".join(keys[:SHOWN]) + (f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else "")
