"""Weights in: a file of ours or of somebody else -> an encoder, or an error. Never random weights.

encoder = load_encoder("CoCLR-ucf101-rgb-128-s3d-ep182.tar")
encoder(clip)                                          # (B, 3, T, H, W) -> (B, 1024)
load_weights("...", part="target", keep_head=True).report.lines()
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from covid_cmsf.models.embedder import Embedder
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.heads import MLP
from covid_cmsf.models.registry import create_encoder
from covid_cmsf.models.weights.card import EncoderCard
from covid_cmsf.models.weights.head_file import head_from
from covid_cmsf.models.weights.layout import StateDict
from covid_cmsf.models.weights.recognize import first_conv
from covid_cmsf.models.weights.report import LoadReport
from covid_cmsf.models.weights.surgery import MEAN, adapt_channels, adapt_values, parse_picks
from covid_cmsf.models.weights.take import Taken, take


@dataclass(frozen=True)
class Loaded:
    """An encoder in eval mode, its projector if it was asked for, what is known about them, what was done."""

    encoder: Encoder
    projector: MLP | None
    card: EncoderCard
    report: LoadReport


def load_encoder(
    path: str | Path,
    *,
    part: str | None = None,
    encoder: str | None = None,
    in_channels: int | None = None,
    adapt: str | None = None,
    bn_eps: float | None = None,
) -> Encoder:
    """The encoder in a file, in eval mode: a normalized clip (B, C, T, H, W) in, a feature (B, num_features) out.

    `part` is online (default), target or guide, or the file's own name for it (encoder_q, encoder_k, sampler, ...).
    `encoder` insists on one of the zoo. `in_channels` other than the file's needs `adapt` (see `surgery`).
    """
    loaded = load_weights(path, part=part, encoder=encoder, in_channels=in_channels, adapt=adapt, bn_eps=bn_eps)
    return loaded.encoder


def load_embedder(path: str | Path, *, part: str | None = None) -> Embedder:
    """Encoder and projector in a file, in eval mode: a clip in, a unit vector out. For guides."""
    loaded = load_weights(path, part=part, keep_head=True)
    assert loaded.projector is not None
    return Embedder(loaded.encoder, loaded.projector).eval()


def load_weights(
    path: str | Path,
    *,
    part: str | None = None,
    encoder: str | None = None,
    in_channels: int | None = None,
    adapt: str | None = None,
    bn_eps: float | None = None,
    keep_head: bool = False,
) -> Loaded:
    """As `load_encoder`, with card, report and (with `keep_head`) the projector; a file without one is an error."""
    taken = take(Path(path), part=part, encoder=encoder, keep_head=keep_head)
    card, state, changes = _adapted(taken, in_channels, adapt)
    projector = head_from(taken.head.state, place=str(path)) if keep_head else None
    changes += _casts(taken.trunk.state) + _unknown_pixels(taken)
    card = card.model_copy(
        update={"bn_eps": bn_eps or card.bn_eps, "projector": projector.layout if projector else None}
    )
    network = create_encoder(card.encoder, in_channels=card.in_channels, bn_eps=card.bn_eps)
    network.load_state_dict(state, strict=True)
    return Loaded(network.eval(), projector, card, _report(taken, card, changes))


def _adapted(taken: Taken, in_channels: int | None, adapt: str | None) -> tuple[EncoderCard, StateDict, list[str]]:
    """Card and tensors for the wanted number of channels, and what was done to them."""
    card, state = taken.card, taken.trunk.state
    if adapt is not None and adapt != MEAN and in_channels is None:
        in_channels = len(parse_picks(adapt, card.in_channels))
    if adapt is None and in_channels in (None, card.in_channels):
        return card, state, []
    if adapt is None:
        raise ValueError(
            f"{taken.path} has {card.in_channels} input channels and {in_channels} were asked for; "
            "say how to adapt them: 'mean', or channels to pick such as '2,1'"
        )
    if in_channels is None:
        raise ValueError(f"channel surgery {adapt!r} needs the number of input channels to have afterwards")
    first = first_conv(card.encoder)
    adapted = {**state, first: adapt_channels(state[first], in_channels, adapt)}
    values = {
        "mean": adapt_values(card.mean, in_channels, adapt, empty=0.0),
        "std": adapt_values(card.std, in_channels, adapt, empty=1.0),
    }
    change = f"first convolution {first}: {card.in_channels} -> {in_channels} channels ({adapt})"
    return card.model_copy(update={"in_channels": in_channels, **values}), adapted, [change]


def _casts(state: StateDict) -> list[str]:
    kinds = sorted({str(tensor.dtype) for tensor in state.values() if tensor.is_floating_point()})
    return [f"stored as {kind}, read as torch.float32" for kind in kinds if kind != str(torch.float32)]


def _unknown_pixels(taken: Taken) -> list[str]:
    known = taken.layout.has_card or len(taken.layout.mean) == taken.card.in_channels
    return [] if known else [f"nothing is known of {taken.card.in_channels} channels: mean 0, std 1 noted"]


def _report(taken: Taken, card: EncoderCard, changes: list[str]) -> LoadReport:
    head = card.projector
    words = None if head is None else " -> ".join(map(str, head.sizes)) + (", batch norm" if head.batch_norm else "")
    return LoadReport(
        path=str(taken.path),
        layout=taken.layout.name,
        part=f"{taken.part.name} ({taken.part.file_name})",
        encoder=card.encoder,
        in_channels=card.in_channels,
        num_taken=len(taken.trunk.state),
        num_twins=taken.trunk.num_twins,
        head=words,
        left_over=taken.left_over,
        changes=tuple(changes),
    )
