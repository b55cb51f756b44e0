"""Base class of the encoders: clip -> feature.

    encoder = create_model("s3d")
    encoder(clip)             # (B, C, T, H, W) -> (B, num_features)
    encoder.forward_features(clip)    # (B, C, T, H, W) -> (B, num_features, t, h, w)

An image (B, C, H, W) is a clip of one frame. Neither the pixels nor the features are normalized here.
Shapes: B batch, C channels, T frames, H W pixels; t h w after the strides.
"""

import hashlib
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from covid_cmsf.clips.flow_codec import FlowLevels
from covid_cmsf.models.checkpoints.metadata import EncoderMetadata, Size
from covid_cmsf.models.gradient_checkpointing import checkpointed_trunk
from covid_cmsf.models.input_transform import InputTransform


class Encoder(nn.Module):
    """Base class: check the clip, run `trunk`, average over time and space.

    `trunk` and the clip are in channels-last memory format: the convolutions of
    CPUs and of GPUs with half precision run faster so, and the numbers stay the same.

    Example:
        >>> encoder = cc.create_model("s3d_tiny")
        >>> clip = torch.randn(2, 3, 8, 64, 64)
        >>> encoder(clip).shape == (2, encoder.num_features)
        True
        >>> feature_map = encoder.forward_features(clip)  # (B, num_features, t, h, w)
    """

    first_conv: str  # state-dict key of the first convolution's weight
    min_input_size: Size  # (T, H, W); smaller clips vanish under the strides
    memory_format: torch.memory_format

    def __init__(self, trunk: nn.Sequential, *, name: str, in_channels: int, num_features: int) -> None:
        super().__init__()
        self.name = name
        self.in_channels = in_channels
        self.num_features = num_features
        self.frozen = False
        self.gradient_checkpointing = False  # less memory for more time: see `gradient_checkpointing.py`
        self.metadata: EncoderMetadata | None = None  # set by `load_weights`
        self.trunk = trunk.to(memory_format=self.memory_format)

    @property
    def num_map_features(self) -> int:
        """Return the number of channels of the feature map."""
        return self.num_features

    def forward_features(self, clip: Tensor) -> Tensor:
        """Return the feature map (B, num_map_features, t, h, w) of a clip (B, C, T, H, W) or an image (B, C, H, W)."""
        raise NotImplementedError

    def run_trunk(self, x: Tensor) -> Tensor:
        """Apply the trunk, with gradient checkpointing if it is on and there are gradients."""
        if self.gradient_checkpointing and torch.is_grad_enabled():
            return checkpointed_trunk(self.trunk, x)
        features: Tensor = self.trunk(x)
        return features

    def forward(self, clip: Tensor) -> Tensor:
        """Return the feature (B, num_features): the feature map averaged over time and space."""
        return self.forward_features(clip).mean(dim=(2, 3, 4))

    def preprocess(self, frames: Tensor | NDArray[np.generic], *, levels: FlowLevels | None = None) -> Tensor:
        """Return the clip (C, T, H, W) that this encoder takes, from the frames of a video: see `InputTransform`."""
        if self.metadata is None:
            raise ValueError(
                f"this {self.name} has no metadata that says how to preprocess frames; load_encoder(FILE) attaches it"
            )
        return InputTransform.from_metadata(self.metadata)(frames, levels=levels)

    def train(self, mode: bool = True) -> "Encoder":
        """Set train mode; a frozen encoder stays in eval mode, even when a parent module calls this."""
        super().train(mode and not self.frozen)
        return self

    def check_clip(self, clip: Tensor) -> Tensor:
        """Return the clip as (B, C, T, H, W); raise ValueError if it does not fit this encoder."""
        if clip.dim() not in (4, 5):
            raise ValueError(
                f"{self.name} takes a clip (B, C, T, H, W) or an image (B, C, H, W), not {tuple(clip.shape)}"
            )
        if not clip.is_floating_point():
            raise ValueError(f"{self.name} takes normalized floating-point clips, not {clip.dtype}")
        clip = clip.unsqueeze(2) if clip.dim() == 4 else clip
        if clip.shape[1] != self.in_channels:
            raise ValueError(f"this {self.name} takes {self.in_channels} input channels, the clip has {clip.shape[1]}")
        if any(actual < minimum for actual, minimum in zip(clip.shape[2:], self.min_input_size, strict=True)):
            raise ValueError(
                f"a clip of {_format_size(clip.shape[2:])} is too small for {self.name}: "
                f"its strides need at least {_format_size(self.min_input_size)}"
            )
        return clip


E = TypeVar("E", bound=nn.Module)


def freeze_(module: E) -> E:
    """Set eval mode for good and disable gradients. Call the frozen module under `torch.inference_mode()`.

    Encoders inside ignore a later `train()`, so their batch-norm statistics cannot move either.

    Example:
        >>> guide = cc.freeze_(cc.create_model("s3d_tiny"))
        >>> guide.train().training
        False
    """
    module.requires_grad_(False)
    for submodule in module.modules():
        if isinstance(submodule, Encoder):
            submodule.frozen = True
    module.eval()
    return module


def parse_size(text: str) -> Size:
    """Parse `32x128x128` into (32, 128, 128): frames, height, width."""
    parts = text.lower().replace("×", "x").split("x")
    if len(parts) != 3 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ValueError(f"size {text!r} is not of the form TxHxW, for example 32x128x128")
    return int(parts[0]), int(parts[1]), int(parts[2])


def _format_size(size: tuple[int, ...]) -> str:
    frames, height, width = size
    return f"{frames} frame{'s' if frames != 1 else ''} at {height}x{width}"


def weights_sha256(module: nn.Module) -> str:
    """Return the SHA-256 of all parameters and buffers with their names, to check that frozen weights are unchanged."""
    digest = hashlib.sha256()
    for name, tensor in sorted(module.state_dict().items()):
        contiguous = tensor.detach().cpu().contiguous()
        digest.update(f"{name} {tuple(contiguous.shape)} {contiguous.dtype}\n".encode())
        digest.update(contiguous.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
