"""The two formats of this package: the exchange file and the training checkpoint.

The exchange file is safetensors: `encoder.*`, optionally `projector.*`, and the metadata as JSON in the header entry
`covid_cmsf`. The training checkpoint is a torch file that `weights_only=True` can read:

    {"format": 2, "encoder": {metadata}, "state": {"online.encoder.*", "online.projector.*", ...}, ...}

Training stores further entries beside these three and in `state`; reading an encoder ignores them.

Format 1 (version 0.1.0) has the same metadata and the same keys of the networks, so weights are read from both. What
only resuming needs has other names there: `settings` and `optimiser` for `config` and `optimizer`, `banks.everyone.*`
for `banks.main.*`, and configuration keys from before they were renamed. Such a run is not resumed.
"""

from pathlib import Path

from torch import nn

from covid_cmsf.models.checkpoints.layout import Branch, CheckpointLayout
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata, parse_metadata
from covid_cmsf.models.checkpoints.reader import OUR_ENTRIES, CheckpointFile
from covid_cmsf.models.encoder import Encoder
from covid_cmsf.verified_files import write_tensors

HEADER_KEY = "covid_cmsf"
CHECKPOINT_FORMAT = 2  # what training writes
READABLE_CHECKPOINT_FORMATS = (1, 2)


def identity_key(native_key: str) -> tuple[str, ...]:
    """Return the key itself: native files have native keys."""
    return (native_key,)


EXCHANGE_LAYOUT = CheckpointLayout(
    name="covid-cmsf encoder",
    branches=(Branch("online", "encoder", "encoder.", "projector."),),
    file_keys=identity_key,
    has_metadata=True,
)
CHECKPOINT_LAYOUT = CheckpointLayout(
    name="covid-cmsf training checkpoint",
    branches=tuple(
        Branch(name, name, f"{name}.encoder.", f"{name}.projector.") for name in ("online", "target", "guide")
    ),
    file_keys=identity_key,
    has_metadata=True,
)


def native_layout(file: CheckpointFile) -> CheckpointLayout | None:
    """Return the native layout that the file's header or entries announce, or None for other files."""
    if file.header is not None and HEADER_KEY in file.header:
        return EXCHANGE_LAYOUT
    return CHECKPOINT_LAYOUT if file.values.keys() >= OUR_ENTRIES else None


def file_metadata(file: CheckpointFile) -> EncoderMetadata:
    """Return the encoder metadata of a file with a native layout."""
    if file.header is not None:
        return parse_metadata(file.header[HEADER_KEY], location=str(file.path))
    if file.values["format"] not in READABLE_CHECKPOINT_FORMATS:
        readable = " and ".join(map(str, READABLE_CHECKPOINT_FORMATS))
        raise ValueError(f"{file.path} has format {file.values['format']!r}; this version reads formats {readable}")
    return parse_metadata(file.values["encoder"], location=str(file.path))


def save_encoder(
    path: Path | str, encoder: Encoder, metadata: EncoderMetadata, *, projector: nn.Module | None = None
) -> None:
    """Write an encoder with its metadata to a safetensors file. The metadata must describe this encoder.

    Example:
        >>> encoder = cc.load_encoder("encoder.safetensors")
        >>> cc.save_encoder("copy-of-encoder.safetensors", encoder, encoder.metadata)
    """
    assert metadata.encoder == encoder.name and metadata.in_channels == encoder.in_channels
    assert (metadata.projector is not None) == (projector is not None)
    state = {f"encoder.{key}": tensor for key, tensor in encoder.state_dict().items()}
    if projector is not None:
        state |= {f"projector.{key}": tensor for key, tensor in projector.state_dict().items()}
    write_tensors(path, state, metadata={HEADER_KEY: metadata.model_dump_json()})
