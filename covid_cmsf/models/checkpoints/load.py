"""Load an encoder, and optionally its projection head, from a checkpoint of this package or of another project.

encoder = load_encoder("CoCLR-ucf101-rgb-128-s3d-ep182.tar")
encoder(clip)                                          # (B, 3, T, H, W) -> (B, 1024)
load_weights("...", branch="target", keep_head=True).report.lines()

Every tensor of the encoder comes from the file: a missing or unknown one is an error, never a random weight. A head is
rebuilt from its tensors alone: the layers follow from their keys and shapes.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

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
from covid_cmsf.models.checkpoints.formats.native import file_metadata, native_layout
from covid_cmsf.models.checkpoints.head import build_head
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
from covid_cmsf.models.heads import MLP
from covid_cmsf.models.named_networks import load_named_network, named_library, rebuild_named_network
from covid_cmsf.models.registry import create_model, encoder_entry


@dataclass(frozen=True)
class LoadReport:
    """What was read: `unused_keys` has every key that was not, `changes` what was modified or is unknown."""

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
        """Return a summary in a few lines, with the number of unused keys by first component."""
        duplicates = f" ({self.num_duplicates} stored twice, with equal values)" if self.num_duplicates else ""
        lines = [
            f"{self.path}: {self.layout}, branch {self.branch}",
            f"{self.encoder} with {self.in_channels} input channels: all {self.num_loaded} tensors loaded{duplicates}",
            f"head: {self.head or 'not loaded'}",
        ]
        lines += [f"note: {change}" for change in self.changes]
        if self.unused_keys:
            counts = Counter(key.split(".")[0] for key in self.unused_keys)
            summary = ", ".join(f"{component} ({n})" if n > 1 else component for component, n in counts.items())
            lines.append(f"unused: {len(self.unused_keys)} keys: {summary}")
        return lines


@dataclass(frozen=True)
class ExtractedState:
    """The tensors of one encoder (and its head) with native keys, their metadata, and the keys that were not used."""

    path: Path
    layout: CheckpointLayout
    branch: Branch
    metadata: EncoderMetadata
    trunk: ExtractedTensors
    head: ExtractedTensors
    unused_keys: tuple[str, ...]


def extract_state(path: Path, *, branch: str | None, encoder: str | None, keep_head: bool) -> ExtractedState:
    """Read one branch of a checkpoint; raise ValueError if anything is missing or does not fit.

    Tensors of a network of another library are compared with it when it is built.
    """
    if encoder is not None and named_library(encoder) is None:
        encoder_entry(encoder)
    file = read_checkpoint_file(path)
    state, outer = unwrap_state_dict(file)
    native = native_layout(file)
    metadata = None if native is None else file_metadata(file)
    is_named = metadata is not None and named_library(metadata.encoder) is not None
    found = _named_layout(native, state) if is_named and native is not None else detect_layout(file, state)
    chosen = _select_branch(found, branch, path)
    trunk = extract_encoder(state, chosen, found.to_native)
    head = extract_head(state, chosen, found.layout.head_layers) if keep_head else ExtractedTensors({}, frozenset())
    unused_keys = [name for name in state if name not in trunk.used | head.used]
    check_unknown_keys(unused_keys, found.layout, chosen, location=str(path))
    if metadata is None or not is_named:
        metadata = _match_encoder(metadata, encoder, trunk.state, found.layout, chosen, path)
    if encoder not in (None, metadata.encoder):
        raise ValueError(f"{path} has an encoder {metadata.encoder}, not {encoder}")
    _check_finite({**trunk.state, **{f"head.{key}": value for key, value in head.state.items()}}, path)
    return ExtractedState(path, found.layout, chosen, metadata, trunk, head, (*unused_keys, *outer))


def _named_layout(layout: CheckpointLayout, state: StateDict) -> DetectedLayout:
    """Return the branches that a file of this package has of a network of another library, whatever its tensors."""
    keys = {
        branch: [name.removeprefix(branch.encoder_prefix) for name in state if name.startswith(branch.encoder_prefix)]
        for branch in layout.branches
    }
    found = tuple(branch for branch, names in keys.items() if names)
    return DetectedLayout(layout, found, {name: name for branch in found for name in keys[branch]})


def _match_encoder(
    metadata: EncoderMetadata | None,
    encoder: str | None,
    state: StateDict,
    layout: CheckpointLayout,
    branch: Branch,
    path: Path,
) -> EncoderMetadata:
    """Return the file's metadata, or default ones, of the registered encoder that its tensors fit."""
    requested = encoder if metadata is None else metadata.encoder
    name = match_encoder(state, requested=requested, layout=layout, branch=branch, location=str(path))
    metadata = metadata or default_metadata(name, layout, state)
    channels = state[first_conv(name)].shape[1]
    if metadata.in_channels != channels:  # before a network of that size is allocated
        raise ValueError(f"{path}: its metadata has {metadata.in_channels} input channels, its weights {channels}")
    return metadata


def default_metadata(encoder: str, layout: CheckpointLayout, state: StateDict) -> EncoderMetadata:
    """Return metadata for a file without it: the layout's usual normalization.

    That is known for RGB only; for any other number of channels mean is 0 and std 1.
    """
    channels = state[first_conv(encoder)].shape[1]
    is_known = len(layout.mean) == channels
    return EncoderMetadata(
        encoder=encoder,
        in_channels=channels,
        input_size=encoder_entry(encoder).default_input_size,
        mean=layout.mean if is_known else (0.0,) * channels,
        std=layout.std if is_known else (1.0,) * channels,
        bn_eps=layout.bn_eps,
        trained=f"unknown; read from a file with the layout: {layout.name}",
    )


def _select_branch(found: DetectedLayout, requested: str | None, path: Path) -> Branch:
    """Return the branch whose name, or name in the file, is `requested`; by default the online network."""
    matching = [branch for branch in found.branches if (requested or "online") in (branch.name, branch.stored_name)]
    if len(matching) == 1:
        return matching[0]
    available = ", ".join(f"{branch.name} ({branch.stored_name})" for branch in found.branches)
    if not matching and requested is None and len(found.branches) == 1:
        return found.branches[0]
    message = (
        f"has no branch {requested or 'online'!r}"
        if not matching
        else f"has more than one branch {requested or 'online'!r}"
    )
    raise ValueError(f"{path} ({found.layout.name}) {message}; it has: {available}")


def _check_finite(state: StateDict, path: Path) -> None:
    for key, tensor in state.items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"{path}: {key} has values that are not finite; the training run diverged")


@dataclass(frozen=True)
class LoadedWeights:
    """An encoder in eval mode, its projector if requested, their metadata, and a report on what was loaded."""

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
        path: a run folder, a checkpoint or exported encoder of this package, weights of CoCLR, torchvision, MSF,
            ..., or a network of another library: `timm:NAME`, `torchvision:NAME?weights=FILE`, `transformers:FOLDER`.
        branch: online (default), target or guide, or the file's own name for it (encoder_q, encoder_k, sampler, ...).
        encoder: the registered name that the file must have.
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
    """Load as `load_encoder`, with metadata and report; with `keep_head` also the projector, or raise ValueError."""
    if named_library(path) is not None:
        _check_unchanged(str(path), branch=branch, keep_head=keep_head)
        _check_unchanged(str(path), encoder=encoder, in_channels=in_channels, adapt=adapt, bn_eps=bn_eps)
        return _load_named(str(path))
    path = find_checkpoint(path)
    extracted = extract_state(path, branch=branch, encoder=encoder, keep_head=keep_head)
    if named_library(extracted.metadata.encoder) is not None:
        _check_unchanged(f"{path} ({extracted.metadata.encoder})", in_channels=in_channels, adapt=adapt, bn_eps=bn_eps)
    metadata, state, changes = _adapt_input(extracted, in_channels, adapt)
    projector = build_head(extracted.head.state, location=str(path)) if keep_head else None
    changes += _describe_casts(extracted.trunk.state) + _describe_unknown_pixels(extracted)
    metadata = metadata.model_copy(
        update={"bn_eps": bn_eps or metadata.bn_eps, "projector": projector.layout if projector else None}
    )
    if named_library(metadata.encoder) is not None:
        network: Encoder = rebuild_named_network(metadata, state, location=str(path))
    else:
        network = create_model(metadata.encoder, in_channels=metadata.in_channels, bn_eps=metadata.bn_eps)
        network.load_state_dict(state, strict=True)
        network.metadata = metadata
    return LoadedWeights(network.eval(), projector, metadata, _make_report(extracted, metadata, changes))


def _check_unchanged(name: str, **options: object) -> None:
    """Raise ValueError for options that a network of another library does not have."""
    given = [option for option, value in options.items() if value not in (None, False)]
    if given:
        raise ValueError(f"{name} is a network of another library, loaded as it is: leave out {', '.join(given)}")


def _load_named(address: str) -> LoadedWeights:
    """Load a network of another library by its address; trainable, as encoders of files are."""
    loaded = load_named_network(address)
    network = loaded.network
    network.frozen = False
    network.requires_grad_(True)
    report = LoadReport(
        path=address if loaded.path is None else str(loaded.path),
        layout=f"weights of {address.partition(':')[0]}",
        branch="online",
        encoder=network.name,
        in_channels=network.in_channels,
        num_loaded=len(network.state_dict()),
        num_duplicates=0,
        head=None,
        unused_keys=(),
        changes=("random weights",) if loaded.is_random else (),
    )
    return LoadedWeights(network.eval(), None, network.metadata, report)


def _adapt_input(
    extracted: ExtractedState, in_channels: int | None, adapt: str | None
) -> tuple[EncoderMetadata, StateDict, list[str]]:
    """Return metadata and tensors for `in_channels` input channels, and a list of the changes."""
    metadata, state = extracted.metadata, extracted.trunk.state
    if adapt is not None and adapt != MEAN and in_channels is None:
        in_channels = len(parse_channel_indices(adapt, metadata.in_channels))
    if adapt is None and in_channels in (None, metadata.in_channels):
        return metadata, state, []
    if adapt is None:
        raise ValueError(
            f"{extracted.path} has {metadata.in_channels} input channels, but {in_channels} were requested; "
            "set adapt to 'mean' or to a list of channels such as '2,1'"
        )
    if in_channels is None:
        raise ValueError(f"channel adaptation {adapt!r} needs the number of input channels (in_channels)")
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
    return (
        [] if known else [f"unknown normalization of {extracted.metadata.in_channels} channels: mean 0, std 1 assumed"]
    )


def _make_report(extracted: ExtractedState, metadata: EncoderMetadata, changes: list[str]) -> LoadReport:
    head = metadata.projector
    summary = None if head is None else " -> ".join(map(str, head.sizes)) + (", batch norm" if head.batch_norm else "")
    return LoadReport(
        path=str(extracted.path),
        layout=extracted.layout.name,
        branch=f"{extracted.branch.name} ({extracted.branch.stored_name})",
        encoder=metadata.encoder,
        in_channels=metadata.in_channels,
        num_loaded=len(extracted.trunk.state),
        num_duplicates=extracted.trunk.num_duplicates,
        head=summary,
        unused_keys=extracted.unused_keys,
        changes=tuple(changes),
    )
