"""Video networks of transformers: VideoMAE and V-JEPA 2. Their own preprocessing comes with them.

transformers:FOLDER                                  what `save_pretrained` wrote, or a copy of a repository of the Hub
transformers:FOLDER?frames=16&stride=4               clips of another length or rate: see `NETWORKS`
transformers:MCG-NJU/videomae-base?weights=hub       downloaded from the Hub: only when asked for

A folder has `config.json`, `model.safetensors` and the file of its processor. Nothing is downloaded without
`weights=hub`, no weight stays random, and no code of a repository runs. The feature is what the classifier takes where
there is one, else the mean over all tokens.
"""

# B batch, C channels, T frames, H W pixels, N tokens, D feature

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covid_cmsf.clips.images.uri import parse_options
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.encoder import freeze_
from covid_cmsf.models.library_weights import HUB, LibraryNetwork, LoadedNetwork, tokens_to_map
from covid_cmsf.models.transformers_processor import PROCESSORS, read_mapping, read_processor
from covid_cmsf.views.resize import Resize

PREFIX = "transformers:"
CONFIG, WEIGHTS = "config.json", "model.safetensors"
ATTENTION = "sdpa"  # PyTorch's
OPTIONS = ("weights", "frames", "stride")


class TokenNetwork(nn.Module):
    """A transformer that maps clips (B, T, C, H, W) to features (B, D): `pool` of its tokens (B, N, D)."""

    def __init__(self, network: nn.Module, pool: nn.Module, *, argument: str) -> None:
        super().__init__()
        self.network, self.pool, self.argument = network, pool, argument

    def forward(self, clips: Tensor) -> Tensor:
        """Return the features (B, D)."""
        features: Tensor = self.pool(self.tokens(clips))
        return features

    def tokens(self, clips: Tensor) -> Tensor:
        """Return the tokens (B, N, D) before they are pooled."""
        tokens: Tensor = self.network(**{self.argument: clips}).last_hidden_state
        return tokens


class MeanOfTokens(nn.Module):
    """The mean over tokens, then a layer norm if the classifier begins with one."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.norm = nn.Identity() if norm is None else norm

    def forward(self, tokens: Tensor) -> Tensor:
        """Map (B, N, D) to (B, D)."""
        features: Tensor = self.norm(tokens.mean(1))
        return features


def _videomae(model: Any) -> TokenNetwork:
    trunk = getattr(model, "videomae", model)
    return TokenNetwork(trunk, MeanOfTokens(getattr(model, "fc_norm", None)), argument="pixel_values")


def _vjepa2(model: Any) -> TokenNetwork:
    trunk = getattr(model, "vjepa2", model)  # its predictor is left out
    return TokenNetwork(trunk.encoder, getattr(model, "pooler", MeanOfTokens()), argument="pixel_values_videos")


@dataclass(frozen=True)
class Network:
    """A class of transformers. `stride` is that of its training, in videos of 25 to 30 frames per second."""

    model: str  # the class that is loaded
    strip: Callable[[Any], TokenNetwork]  # leaves out classifier, decoder and predictor
    frames: str  # names in the configuration: of the number of frames
    size: str  # ... and of their size in pixels
    stride: int
    is_fixed: bool  # its positions are those of clips of one length and size


VIDEOMAE = partial(Network, strip=_videomae, frames="num_frames", size="image_size", stride=4, is_fixed=True)
VJEPA2 = partial(Network, strip=_vjepa2, frames="frames_per_clip", size="crop_size", stride=2, is_fixed=False)
NETWORKS = {  # by the first of `architectures` in config.json
    "VideoMAEModel": VIDEOMAE("VideoMAEModel"),
    "VideoMAEForPreTraining": VIDEOMAE("VideoMAEModel"),
    "VideoMAEForVideoClassification": VIDEOMAE("VideoMAEForVideoClassification"),
    "VJEPA2Model": VJEPA2("VJEPA2Model"),
    "VJEPA2ForVideoClassification": VJEPA2("VJEPA2ForVideoClassification"),
}


class TransformersNetwork(LibraryNetwork):
    """A video network of transformers without its classifier. `settings` and the weights are all that makes it."""

    memory_format = torch.contiguous_format

    def __init__(self, model: Any, name: str, settings: Mapping[str, Any]) -> None:
        kind, config, seen = NETWORKS[settings["architecture"]], model.config, settings["input"]
        network = kind.strip(model)
        super().__init__(nn.Sequential(network), name=name, in_channels=3, num_features=config.hidden_size)
        length, size = seen["frames"], seen["size"]
        self.settings = dict(settings)
        shared = {key: value for key, value in settings["config"].items() if key != "_name_or_path"}  # no folder
        self.is_fixed = kind.is_fixed
        self.tubelet: int = config.tubelet_size
        self.min_input_size = (length, size, size) if kind.is_fixed else (self.tubelet, *(config.patch_size,) * 2)
        own = (getattr(config, kind.frames), getattr(config, kind.size))
        if kind.is_fixed and own != (length, size):
            raise ValueError(f"{name} takes {own[0]} frames of {own[1]} pixels only, not {length} of {size}")
        if length % self.tubelet or size % config.patch_size:
            raise ValueError(
                f"{name} takes frames by {self.tubelet} and pixels by {config.patch_size}: {length} frames of {size} "
                "pixels do not fit"
            )
        self.metadata = EncoderMetadata(
            encoder=name,
            in_channels=3,
            input_size=(length, size, size),
            stride=seen["stride"],
            mean=tuple(seen["mean"]),
            std=tuple(seen["std"]),
            crop=seen["crop"],
            resize=Resize(interpolation=seen.get("interpolation", "bilinear"), floor=True),
            modality="rgb",
            bn_eps=1e-5,  # it has none
            trained="by others, on videos",
            settings={**settings, "config": shared},
        )

    def forward(self, clip: Tensor) -> Tensor:
        """Map clips (B, 3, T, H, W) to features (B, num_features)."""
        features: Tensor = self.trunk(self.check_clip(clip).transpose(1, 2))
        return features

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return the tokens of all places and times, (B, num_features, N, 1, 1)."""
        network = self.trunk[0]
        assert isinstance(network, TokenNetwork)
        return tokens_to_map(network.tokens(self.check_clip(clip).transpose(1, 2)))

    def check_clip(self, clip: Tensor) -> Tensor:
        """Return the clip as (B, 3, T, H, W); raise ValueError if it does not fit."""
        clip = super().check_clip(clip)
        if self.is_fixed and tuple(clip.shape[2:]) != self.min_input_size:
            raise ValueError(f"{self.name} takes clips of {self.min_input_size} only, not {tuple(clip.shape[2:])}")
        return clip


def load_transformers_network(address: str) -> LoadedNetwork:
    """Load `transformers:FOLDER` or `transformers:OWNER/NAME?weights=hub`.

    Raises:
        ValueError: transformers is not installed, or the folder has no network that can be a guide.
        FileNotFoundError: there is no such folder, or a file is missing.
    """
    folder, options = _parse(address)
    _check_installed(address)
    path, name = transformers_weights_file(address), f"{PREFIX}{folder.resolve().name}"
    if path is None:
        folder = _download(str(folder))
    settings = _read_settings(folder, options)
    model = _load(folder, NETWORKS[settings["architecture"]].model)
    return LoadedNetwork(freeze_(TransformersNetwork(model, name, settings)), path)


def transformers_weights_file(address: str) -> Path | None:
    """Return the weights file of an address; None if it is downloaded.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    folder, options = _parse(address)
    weights = options.get("weights", "")
    if weights == HUB:
        return None
    if weights:
        raise ValueError(f"{address}: weights={weights} is not understood: leave it out, or weights={HUB} to download")
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{address}: there is no folder {folder}; give what save_pretrained wrote, or download it: "
            f"{PREFIX}{folder}?weights={HUB}"
        )
    return folder / WEIGHTS


def transformers_inputs(address: str) -> str:
    """Return a hash of what determines the features beside the weights: configuration, preprocessing, options."""
    folder, options = _parse(address)
    digest = hashlib.sha256(repr(sorted(options.items())).encode())
    for name in (CONFIG, *PROCESSORS):
        digest.update((folder / name).read_bytes() if (folder / name).is_file() else b"")
    return digest.hexdigest()


def build_transformers_network(
    name: str, tensors: Mapping[str, Tensor], settings: Mapping[str, Any], *, location: str
) -> TransformersNetwork:
    """Return the frozen network of `settings` with the `tensors` of its trunk; `location` is for error messages."""
    network = create_transformers_network(name, settings, location=location)
    try:
        network.trunk[0].load_state_dict(dict(tensors), strict=True)
    except RuntimeError as error:
        raise ValueError(f"{location} does not fit {name}: {str(error).splitlines()[-1].strip()}") from None
    return freeze_(network)


def create_transformers_network(name: str, settings: Mapping[str, Any], *, location: str) -> TransformersNetwork:
    """Return the network of `settings`, whose weights are still random; `location` is for error messages."""
    _check_installed(name)
    import transformers

    if settings["architecture"] not in NETWORKS:
        raise ValueError(f"{location}: {settings['architecture']!r} is none of {', '.join(NETWORKS)}")
    kind = getattr(transformers, NETWORKS[settings["architecture"]].model)
    config = kind.config_class.from_dict({**settings["config"], "attn_implementation": ATTENTION})
    with torch.random.fork_rng(devices=[]):
        return TransformersNetwork(kind(config), name, settings)


# Folders


def _parse(address: str) -> tuple[Path, dict[str, str]]:
    location, _, query = address.partition("?")
    options = parse_options(address, query, OPTIONS)
    for name in ("frames", "stride"):
        if name in options and not (options[name].isdecimal() and int(options[name]) > 0):
            raise ValueError(f"{address}: {name}={options[name]} is no number from 1 on")
    return Path(location.removeprefix(PREFIX)), options


def _check_installed(address: str) -> None:
    if find_spec("transformers") is None:
        raise ValueError(f"{address} needs transformers: pip install 'covid-cmsf[transformers]'")


def _read_settings(folder: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Return architecture, configuration and input: JSON values."""
    config = read_mapping(folder / CONFIG)
    named = config.get("architectures")
    first = named[0] if isinstance(named, list) and named else ""
    if not isinstance(first, str) or first not in NETWORKS:
        raise ValueError(f"{folder / CONFIG}: the architecture {first!r} is none of {', '.join(NETWORKS)}")
    network = NETWORKS[first]
    seen = read_processor(folder)
    stored = config.get(network.frames)
    frames = int(options["frames"]) if "frames" in options else stored
    if type(frames) is not int or frames < 1:
        raise ValueError(f"{folder / CONFIG} has no {network.frames}; give the number of frames: ?frames=16")
    seen |= {"frames": frames, "stride": int(options.get("stride", network.stride))}
    return {"architecture": first, "config": config, "input": seen}


def _load(folder: Path, model: str) -> Any:
    """Return the model with every weight from the folder's file; nothing but safetensors is read."""
    import transformers

    if not (folder / WEIGHTS).is_file():
        raise FileNotFoundError(
            f"{folder} has no {WEIGHTS}; only weights in one file of safetensors are read: load the network with "
            "transformers once, and save_pretrained it"
        )
    kind = getattr(transformers, model)
    try:
        with torch.random.fork_rng(devices=[]), _silence():
            loaded, report = kind.from_pretrained(
                str(folder),
                local_files_only=True,
                use_safetensors=True,
                trust_remote_code=False,
                dtype=torch.float32,
                attn_implementation=ATTENTION,
                ignore_mismatched_sizes=True,  # they are in the report
                output_loading_info=True,
            )
    except Exception as error:  # whatever transformers and safetensors raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{folder / WEIGHTS} cannot be read as {model} ({reason})") from error
    wrong = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if wrong:
        raise ValueError(
            f"{folder / WEIGHTS} does not fit {folder / CONFIG}: {wrong[0]} is missing or of another shape"
        )
    return loaded


@contextmanager
def _silence() -> Iterator[None]:
    """Keep transformers from printing tables of tensors and progress bars; what matters is checked by us."""
    import transformers

    logging: Any = transformers.utils.logging  # without types
    verbosity, has_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bars:
            logging.enable_progress_bar()


def _download(name: str) -> Path:
    """Return the folder of a repository in the cache of huggingface_hub, downloaded if it is not there."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=[CONFIG, WEIGHTS, *PROCESSORS]))
    except Exception as error:  # whatever the Hub's client or the file system raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"the weights of {name} could not be downloaded ({reason})") from error
