"""Video networks of torchvision, by name: `torchvision:NAME`. Their own preprocessing comes with them.

torchvision:r3d_18?weights=r3d_18.pth     weights from a file, .pth or .safetensors
torchvision:s3d?weights=hub               weights that torchvision downloads: only when asked for
torchvision:r3d_18?weights=random         random weights, a baseline

`NETWORKS` has the names. Frames are resized and cropped as by torchvision, which keeps the aspect ratio for some.
"""

# B batch, C channels, T frames, H W pixels, D feature

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from covid_cmsf.files import file_sha256
from covid_cmsf.models.checkpoints.detect import unwrap_state_dict
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata, Size
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

PREFIX = "torchvision:"
RANDOM = "random"
CROP = 224 / 256  # 112 of 128 for the smaller ones
HEADS = ("fc", "classifier", "head")  # names of the classifier


@dataclass(frozen=True)
class Input:
    """What a network was trained on. `stride` is for videos of 25 to 30 frames per second."""

    length: int
    stride: int
    size: int
    mean: tuple[float, float, float] = (0.43216, 0.394666, 0.37645)
    std: tuple[float, float, float] = (0.22803, 0.22145, 0.216989)
    smallest: Size = (1, 16, 16)
    is_fixed: bool = False  # takes nothing but (length, size, size)
    aspect: float | None = None  # width over height of the frames before the crop; None: kept


RESNET = Input(16, 2, 112, aspect=171 / 128)  # 15 frames per second
MVIT = Input(16, 4, 224, (0.45,) * 3, (0.225,) * 3, is_fixed=True)  # 7.5 frames per second
SWIN = Input(32, 2, 224, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225), smallest=(2, 32, 32))
# torchvision measured S3D on 128 frames; few videos are that long at its 15 frames per second.
S3D = Input(32, 2, 224, smallest=(14, 224, 224), aspect=1)
NETWORKS = {
    "r3d_18": RESNET,
    "mc3_18": RESNET,
    "r2plus1d_18": RESNET,
    "s3d": S3D,
    "mvit_v1_b": MVIT,
    "mvit_v2_s": MVIT,
    "swin3d_t": SWIN,
    "swin3d_s": SWIN,
    "swin3d_b": SWIN,
}


class VideoNetwork(LibraryNetwork):
    """A network of torchvision without its classifier."""

    memory_format = torch.channels_last_3d

    def __init__(self, network: nn.Module, name: str, *, trained: str) -> None:
        taken = NETWORKS[name]
        num_features = _remove_classifier_(network)
        super().__init__(nn.Sequential(network), name=f"{PREFIX}{name}", in_channels=3, num_features=num_features)
        self.min_input_size = (taken.length, taken.size, taken.size) if taken.is_fixed else taken.smallest
        self.is_fixed = taken.is_fixed
        self.metadata = EncoderMetadata(
            encoder=self.name,
            in_channels=3,
            input_size=(taken.length, taken.size, taken.size),
            stride=taken.stride,
            mean=taken.mean,
            std=taken.std,
            crop=CROP,
            resize=Resize(antialias=False, aspect=taken.aspect),  # as they were trained and measured
            modality="rgb",
            bn_eps=1e-5,  # torchvision's networks have their own, which nobody changes
            trained=trained,
        )

    def forward(self, clip: Tensor) -> Tensor:
        """Map clips (B, 3, T, H, W) to features (B, num_features)."""
        features: Tensor = self.trunk(self.check_clip(clip))
        return features

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return the feature map (B, num_features, t, h, w); of MViT all tokens, (B, num_features, N, 1, 1)."""
        return _feature_map(self.trunk[0], self.check_clip(clip))

    def check_clip(self, clip: Tensor) -> Tensor:
        """Return the clip as (B, 3, T, H, W); raise ValueError if it does not fit."""
        clip = super().check_clip(clip)
        if self.is_fixed and tuple(clip.shape[2:]) != self.min_input_size:
            raise ValueError(f"{self.name} takes clips of {self.min_input_size} only, not {tuple(clip.shape[2:])}")
        return clip


def _feature_map(network: Any, clip: Tensor) -> Tensor:
    """Run the layers before the pooling, in the order of torchvision's `forward`."""
    from torchvision.models.video import S3D as S3DNetwork
    from torchvision.models.video import SwinTransformer3d, VideoResNet

    if isinstance(network, S3DNetwork):
        layers = [network.features]
    elif isinstance(network, VideoResNet):
        layers = [network.stem, network.layer1, network.layer2, network.layer3, network.layer4]
    elif isinstance(network, SwinTransformer3d):
        layers = [network.patch_embed, network.pos_drop, network.features, network.norm]
    else:
        return tokens_to_map(_mvit_tokens(network, clip))
    for layer in layers:
        clip = layer(clip)
    return rearrange(clip, "b t h w d -> b d t h w") if isinstance(network, SwinTransformer3d) else clip


def _mvit_tokens(network: Any, clip: Tensor) -> Tensor:
    """Return the tokens (B, N, D) of an MViT, that of the class first."""
    tokens = network.pos_encoding(network.conv_proj(clip).flatten(2).transpose(1, 2))
    shape = (network.pos_encoding.temporal_size, *network.pos_encoding.spatial_size)
    for block in network.blocks:
        tokens, shape = block(tokens, shape)
    normalized: Tensor = network.norm(tokens)
    return normalized


def load_video_network(address: str) -> LoadedNetwork:
    """Load `torchvision:NAME?weights=...`.

    Raises:
        ValueError: there is no such network, or no weights are named or they do not fit.
        FileNotFoundError: there is no such weights file.
    """
    name, weights = split_address(address)
    _check_name(name)
    path = video_weights_file(address)
    if path is not None:
        state, _ = unwrap_state_dict(read_checkpoint_file(path))
        return LoadedNetwork(build_video_network(name, state, location=str(path)), path)
    if weights == RANDOM:
        return LoadedNetwork(freeze_(_create(name, trained="untrained: random weights of seed 0")), None, True)
    path = _download(name)
    state, _ = unwrap_state_dict(read_checkpoint_file(path))
    network = _create(name, trained="by others, on Kinetics-400")
    load_state_(network, state, location=str(path))
    return LoadedNetwork(freeze_(network), None)


def video_weights_file(address: str) -> Path | None:
    """Return the weights file of an address, which may be missing; None if they are downloaded or random."""
    name, weights = split_address(address)
    if not weights:
        raise ValueError(
            f"no weights for {PREFIX}{name}: give a file, {PREFIX}{name}?weights=FILE, let torchvision download them, "
            f"{PREFIX}{name}?weights={HUB}, or take random ones, {PREFIX}{name}?weights={RANDOM}"
        )
    return None if weights in (HUB, RANDOM) else Path(weights)


def build_video_network(name: str, state: Mapping[str, Tensor], *, location: str) -> VideoNetwork:
    """Return the frozen network of this name with these weights; `location` is for error messages."""
    network = create_video_network(name)
    load_state_(network, state, location=location)
    return freeze_(network)


def create_video_network(name: str) -> VideoNetwork:
    """Return the network of this name, with or without `torchvision:`, whose weights are still random."""
    name = name.removeprefix(PREFIX)
    _check_name(name)
    return _create(name, trained="by others, on videos")


def _create(name: str, *, trained: str) -> VideoNetwork:
    from torchvision.models import get_model

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return VideoNetwork(get_model(name, weights=None), name, trained=trained)


def _remove_classifier_(network: nn.Module) -> int:
    """Replace the classifier by nothing; return the number of features that it took."""
    name = next(name for name in HEADS if hasattr(network, name))
    layers = [layer for layer in getattr(network, name).modules() if isinstance(layer, nn.Linear | nn.Conv3d)]
    setattr(network, name, nn.Identity())
    return layers[0].in_features if isinstance(layers[0], nn.Linear) else layers[0].in_channels


def _check_name(name: str) -> None:
    if name not in NETWORKS:
        raise ValueError(f"torchvision has no video network {name!r}; choose from {', '.join(NETWORKS)}")


def _download(name: str) -> Path:
    """Return torchvision's weights file in the cache of torch.hub, downloaded if it is not there.

    The file is verified by the start of its SHA-256 in its name, and is read as any other: torch.hub would unpickle it
    freely, and not look at the hash of a file that is already there.
    """
    from torchvision.models import get_model_weights

    url: str = get_model_weights(name)["DEFAULT"].url
    path = Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]
    expected = path.stem.rpartition("-")[2]
    if not path.is_file():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            torch.hub.download_url_to_file(url, str(path), expected, progress=False)
        except Exception as error:  # whatever the client or the file system raise
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ValueError(f"torchvision could not download the weights of {name} ({reason})") from error
    if not file_sha256(path).startswith(expected):
        raise ValueError(f"{path} is damaged: its SHA-256 does not begin with {expected}; delete it")
    return path
