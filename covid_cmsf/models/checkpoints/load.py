"""Weights in: a file of ours or of somebody else -> an encoder, or an error. Never random weights.

encoder = load_encoder("CoCLR-ucf101-rgb-128-s3d-ep182.tar")
encoder(clip)                                          # (B, 3, T, H, W) -> (B, 1024)
load_weights("...", branch="target", keep_head=True).report.lines()
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from covid_cmsf.models.checkpoints.channel_adapt import (
    MEAN,
    adapt_channel_values,
    adapt_channels,
    parse_channel_indices,
)
from covid_cmsf.models.checkpoints.detect import (
    DetectedLayout,
    check_unknown_keys,
    detect_layout,
    first_conv,
    match_encoder,
    unwrap_state_dict,
)
from covid_cmsf.models.checkpoints.formats.native import file_metadata
from covid_cmsf.models.checkpoints.layout import (
    Branch,
    CheckpointLayout,
    ExtractedTensors,
    StateDict,
    extract_encoder,
    extract_head,
)
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.checkpoints.reader import find_checkpoint, read_checkpoint_file
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.models.heads import MLP, HeadLayout
from covid_cmsf.models.registry import create_model, encoder_entry


@dataclass(frozen=True)
class LoadReport:
    """`unused_keys` names every key of the file that was not used; `changes` says what was altered or is not known."""

    path: str
    layout: str
    branch: str
    encoder: str
    in_channels: int
    num_loaded: int
    num_duplicates: int
    head: str | None
    unused_keys: tuple[str, ...]
    changes: tuple[str, ...]

    def lines(self) -> list[str]:
        """A few lines for the screen; unused keys are counted by where they stand."""
        duplicates = f" ({self.num_duplicates} stood there twice, with equal values)" if self.num_duplicates else ""
        lines = [
            f"{self.path}: {self.layout}, branch {self.branch}",
            f"{self.encoder} with {self.in_channels} input channels: all {self.num_loaded} tensors found{duplicates}",
            f"head: {self.head or 'not taken'}",
        ]
        lines += [f"note: {change}" for change in self.changes]
        if self.unused_keys:
            places = Counter(key.split(".")[0] for key in self.unused_keys)
            counts = ", ".join(f"{place} ({n})" if n > 1 else place for place, n in places.items())
            lines.append(f"unused: {len(self.unused_keys)} keys: {counts}")
        return lines


# A head from its tensors alone: the layers are read off their names and shapes.


def build_head(state: StateDict, *, location: str) -> MLP:
    """An `MLP` with exactly these tensors, in eval mode; ValueError when they are not those of one."""
    if not state:
        raise ValueError(f"{location} has no projection head beside this encoder")
    head = MLP(infer_head_layout(state, location=location))
    expected = {key: tensor.shape for key, tensor in head.state_dict().items()}
    if expected != {key: tensor.shape for key, tensor in state.items()}:
        odd = sorted(expected.keys() ^ state.keys()) or sorted(state)
        raise ValueError(f"{location}: the head is not a plain MLP of linear layers with bias ({', '.join(odd[:4])})")
    head.load_state_dict(state, strict=True)
    return head.eval()


def infer_head_layout(state: StateDict, *, location: str) -> HeadLayout:
    """Sizes and batch norms of the MLP that has these weights; ReLU layers have no tensors and are implied."""
    layers = [_weight(state, index, location) for index in sorted({int(key.split(".")[0]) for key in state})]
    linear = [i for i, weight in enumerate(layers) if weight.dim() == 2]
    if not linear or linear[0] != 0:
        raise ValueError(f"{location}: the head does not start with a linear layer")
    return HeadLayout(
        sizes=(layers[0].shape[1], *(layers[i].shape[0] for i in linear)),
        batch_norm=any(layers[i].dim() == 1 for i in range(linear[-1])),
        output_batch_norm=linear[-1] != len(layers) - 1,
    )


def _weight(state: StateDict, index: int, location: str) -> Tensor:
    if f"{index}.weight" not in state:
        raise ValueError(f"{location}: layer {index} of the head has no weight")
    return state[f"{index}.weight"]


# From an open file to the tensors of one encoder under our names, with everything checked.


@dataclass(frozen=True)
class ExtractedState:
    """The tensors of one encoder (and its head) from a file, what the file says of them, and what stayed there."""

    path: Path
    layout: CheckpointLayout
    branch: Branch
    metadata: EncoderMetadata
    trunk: ExtractedTensors
    head: ExtractedTensors
    unused_keys: tuple[str, ...]


def extract_state(path: Path, *, branch: str | None, encoder: str | None, keep_head: bool) -> ExtractedState:
    """Reads `path`, recognizes it and takes one branch; ValueError for anything that is missing or does not fit."""
    if encoder is not None:
        encoder_entry(encoder)
    file = read_checkpoint_file(path)
    state, outer = unwrap_state_dict(file)
    found = detect_layout(file, state)
    chosen = _select_branch(found, branch, path)
    trunk = extract_encoder(state, chosen, found.to_native)
    head = extract_head(state, chosen, found.layout.head_layers) if keep_head else ExtractedTensors({}, frozenset())
    unused_keys = [name for name in state if name not in trunk.used | head.used]
    check_unknown_keys(unused_keys, found.layout, chosen, location=str(path))
    metadata = file_metadata(file) if found.layout.has_metadata else None
    requested = encoder if metadata is None else metadata.encoder
    name = match_encoder(trunk.state, requested=requested, layout=found.layout, branch=chosen, location=str(path))
    if encoder not in (None, name):
        raise ValueError(f"{path} holds {name}, not {encoder}")
    _check_finite({**trunk.state, **{f"head.{key}": value for key, value in head.state.items()}}, path)
    metadata = metadata or default_metadata(name, found.layout, trunk.state)
    return ExtractedState(path, found.layout, chosen, metadata, trunk, head, (*unused_keys, *outer))


def default_metadata(encoder: str, layout: CheckpointLayout, state: StateDict) -> EncoderMetadata:
    """What is known about somebody else's encoder: the habits of those who wrote such files.

    Their pixels have three channels; for any other number the metadata says mean 0 and std 1, nothing known.
    """
    channels = state[first_conv(encoder)].shape[1]
    usual = len(layout.mean) == channels
    return EncoderMetadata(
        encoder=encoder,
        in_channels=channels,
        input_size=encoder_entry(encoder).default_input_size,
        mean=layout.mean if usual else (0.0,) * channels,
        std=layout.std if usual else (1.0,) * channels,
        bn_eps=layout.bn_eps,
        trained=f"unknown; read from a file with the layout: {layout.name}",
    )


def _select_branch(found: DetectedLayout, requested: str | None, path: Path) -> Branch:
    """The branch called `requested` by us or by the file; the online network when nothing is said."""
    matching = [branch for branch in found.branches if (requested or "online") in (branch.name, branch.stored_name)]
    if len(matching) == 1:
        return matching[0]
    held = ", ".join(f"{branch.name} ({branch.stored_name})" for branch in found.branches)
    if not matching and requested is None and len(found.branches) == 1:
        return found.branches[0]
    message = (
        f"has no branch {requested or 'online'!r}"
        if not matching
        else f"has more than one branch {requested or 'online'!r}"
    )
    raise ValueError(f"{path} ({found.layout.name}) {message}; it holds: {held}")


def _check_finite(state: StateDict, path: Path) -> None:
    for key, tensor in state.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"{path}: {key} holds values that are not finite; the training that wrote it diverged")


@dataclass(frozen=True)
class LoadedWeights:
    """An encoder in eval mode, its projector if it was asked for, what is known about them, what was done."""

    encoder: Encoder
    projector: MLP | None
    metadata: EncoderMetadata
    report: LoadReport


def load_encoder(
    path: str | Path,
    *,
    branch: str | None = None,
    encoder: str | None = None,
    in_channels: int | None = None,
    adapt: str | None = None,
    bn_eps: float | None = None,
) -> Encoder:
    """Load an encoder from a file or a run folder, in eval mode, with `metadata` and `preprocess` attached.

    Args:
        path: our checkpoint, exchange file or run folder, or weights of CoCLR, torchvision, MSF, ...
        branch: online (default), target or guide, or the file's own name for it (encoder_q, encoder_k, sampler, ...).
        encoder: insist on this one of the zoo.
        in_channels: another number of input channels than the file's; needs `adapt`.
        adapt: how to adapt the first convolution: "mean", or channels to pick such as "2,1".
        bn_eps: another epsilon of the batch norms than the file's.

    Example:
        >>> encoder = cc.load_encoder("encoder.safetensors")
        >>> frames = torch.randint(0, 256, (6, 48, 64, 3), dtype=torch.uint8)
        >>> feature = encoder(encoder.preprocess(frames)[None])  # (1, num_features)
    """
    loaded = load_weights(path, branch=branch, encoder=encoder, in_channels=in_channels, adapt=adapt, bn_eps=bn_eps)
    return loaded.encoder


def load_weights(
    path: str | Path,
    *,
    branch: str | None = None,
    encoder: str | None = None,
    in_channels: int | None = None,
    adapt: str | None = None,
    bn_eps: float | None = None,
    keep_head: bool = False,
) -> LoadedWeights:
    """As `load_encoder`, with metadata, report and (with `keep_head`) the projector; a file without one is an error."""
    path = find_checkpoint(path)
    extracted = extract_state(path, branch=branch, encoder=encoder, keep_head=keep_head)
    metadata, state, changes = _adapt_input(extracted, in_channels, adapt)
    projector = build_head(extracted.head.state, location=str(path)) if keep_head else None
    changes += _describe_casts(extracted.trunk.state) + _describe_unknown_pixels(extracted)
    metadata = metadata.model_copy(
        update={"bn_eps": bn_eps or metadata.bn_eps, "projector": projector.layout if projector else None}
    )
    network = create_model(metadata.encoder, in_channels=metadata.in_channels, bn_eps=metadata.bn_eps)
    network.load_state_dict(state, strict=True)
    network.metadata = metadata
    return LoadedWeights(network.eval(), projector, metadata, _make_report(extracted, metadata, changes))


def _adapt_input(
    extracted: ExtractedState, in_channels: int | None, adapt: str | None
) -> tuple[EncoderMetadata, StateDict, list[str]]:
    """Metadata and tensors for the wanted number of channels, and what was done to them."""
    metadata, state = extracted.metadata, extracted.trunk.state
    if adapt is not None and adapt != MEAN and in_channels is None:
        in_channels = len(parse_channel_indices(adapt, metadata.in_channels))
    if adapt is None and in_channels in (None, metadata.in_channels):
        return metadata, state, []
    if adapt is None:
        raise ValueError(
            f"{extracted.path} has {metadata.in_channels} input channels and {in_channels} were asked for; "
            "say how to adapt them: 'mean', or channels to pick such as '2,1'"
        )
    if in_channels is None:
        raise ValueError(f"channel surgery {adapt!r} needs the number of input channels to have afterwards")
    first = first_conv(metadata.encoder)
    adapted = {**state, first: adapt_channels(state[first], in_channels, adapt)}
    values = {
        "mean": adapt_channel_values(metadata.mean, in_channels, adapt, empty=0.0),
        "std": adapt_channel_values(metadata.std, in_channels, adapt, empty=1.0),
    }
    change = f"first convolution {first}: {metadata.in_channels} -> {in_channels} channels ({adapt})"
    return metadata.model_copy(update={"in_channels": in_channels, **values}), adapted, [change]


def _describe_casts(state: StateDict) -> list[str]:
    dtypes = sorted({str(tensor.dtype) for tensor in state.values() if tensor.is_floating_point()})
    return [f"stored as {dtype}, read as torch.float32" for dtype in dtypes if dtype != str(torch.float32)]


def _describe_unknown_pixels(extracted: ExtractedState) -> list[str]:
    known = extracted.layout.has_metadata or len(extracted.layout.mean) == extracted.metadata.in_channels
    return [] if known else [f"nothing is known of {extracted.metadata.in_channels} channels: mean 0, std 1 noted"]


def _make_report(extracted: ExtractedState, metadata: EncoderMetadata, changes: list[str]) -> LoadReport:
    head = metadata.projector
    message = None if head is None else " -> ".join(map(str, head.sizes)) + (", batch norm" if head.batch_norm else "")
    return LoadReport(
        path=str(extracted.path),
        layout=extracted.layout.name,
        branch=f"{extracted.branch.name} ({extracted.branch.stored_name})",
        encoder=metadata.encoder,
        in_channels=metadata.in_channels,
        num_loaded=len(extracted.trunk.state),
        num_duplicates=extracted.trunk.num_duplicates,
        head=message,
        unused_keys=extracted.unused_keys,
        changes=tuple(changes),
    )
