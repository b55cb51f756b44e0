"""From an open file to the tensors of one encoder under our names, with everything checked."""

from dataclasses import dataclass
from pathlib import Path

import torch

from covid_cmsf.models.registry import encoder_entry
from covid_cmsf.models.weights.card import EncoderCard
from covid_cmsf.models.weights.files import read_file
from covid_cmsf.models.weights.fit import check_nothing_unknown, fitting_encoder
from covid_cmsf.models.weights.layout import Gathered, Layout, Part, StateDict, gather_encoder, gather_head
from covid_cmsf.models.weights.ours import card_of
from covid_cmsf.models.weights.recognize import Recognized, first_conv, recognize, state_of


@dataclass(frozen=True)
class Taken:
    """The tensors of one encoder (and its head) from a file, what the file says of them, and what stayed there."""

    path: Path
    layout: Layout
    part: Part
    card: EncoderCard
    trunk: Gathered
    head: Gathered
    left_over: tuple[str, ...]


def take(path: Path, *, part: str | None, encoder: str | None, keep_head: bool) -> Taken:
    """Reads `path`, recognizes it and takes one part; ValueError for anything that is missing or does not fit."""
    if encoder is not None:
        encoder_entry(encoder)
    file = read_file(path)
    state, outer = state_of(file)
    found = recognize(file, state)
    chosen = _choose(found, part, path)
    trunk = gather_encoder(state, chosen, found.to_ours)
    head = gather_head(state, chosen, found.layout.head_layers) if keep_head else Gathered({}, frozenset())
    left_over = [name for name in state if name not in trunk.used | head.used]
    check_nothing_unknown(left_over, found.layout, chosen, place=str(path))
    card = card_of(file) if found.layout.has_card else None
    wanted = encoder if card is None else card.encoder
    name = fitting_encoder(trunk.state, wanted=wanted, layout=found.layout, part=chosen, place=str(path))
    if encoder not in (None, name):
        raise ValueError(f"{path} holds {name}, not {encoder}")
    _check_finite({**trunk.state, **{f"head.{key}": value for key, value in head.state.items()}}, path)
    card = card or foreign_card(name, found.layout, trunk.state)
    return Taken(path, found.layout, chosen, card, trunk, head, (*left_over, *outer))


def foreign_card(encoder: str, layout: Layout, state: StateDict) -> EncoderCard:
    """What is known about somebody else's encoder: the habits of those who wrote such files.

    Their pixels have three channels; for any other number the card says mean 0 and std 1, nothing known.
    """
    channels = state[first_conv(encoder)].shape[1]
    usual = len(layout.mean) == channels
    return EncoderCard(
        encoder=encoder,
        in_channels=channels,
        input_size=encoder_entry(encoder).usual_input,
        mean=layout.mean if usual else (0.0,) * channels,
        std=layout.std if usual else (1.0,) * channels,
        bn_eps=layout.bn_eps,
        trained=f"unknown; read from a file with the layout: {layout.name}",
    )


def _choose(found: Recognized, wanted: str | None, path: Path) -> Part:
    """The part called `wanted` by us or by the file; the online network when nothing is said."""
    matching = [part for part in found.parts if (wanted or "online") in (part.name, part.file_name)]
    if len(matching) == 1:
        return matching[0]
    held = ", ".join(f"{part.name} ({part.file_name})" for part in found.parts)
    if not matching and wanted is None and len(found.parts) == 1:
        return found.parts[0]
    words = f"has no part {wanted or 'online'!r}" if not matching else f"has more than one part {wanted or 'online'!r}"
    raise ValueError(f"{path} ({found.layout.name}) {words}; it holds: {held}")


def _check_finite(state: StateDict, path: Path) -> None:
    for key, tensor in state.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"{path}: {key} holds values that are not finite; the training that wrote it diverged")
