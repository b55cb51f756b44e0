"""Models to evaluate: an encoder from a checkpoint, an encoder with random weights, or a histogram.

Histograms are baselines without a network. They take the same views as encoders (RGB from 0 to 1, flow in pixels per
frame) and return a feature.
"""

# B batch, C channels, T frames, H W pixels, D feature

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from covid_cmsf.files import file_sha256
from covid_cmsf.models import Encoder, EncoderMetadata, create_model, encoder_entry, freeze_, load_weights
from covid_cmsf.models.checkpoints.reader import find_checkpoint
from covid_cmsf.models.named_networks import load_named_network, named_library
from covid_cmsf.views.modalities import get_modality


class ColorHistogram(nn.Module):
    """Joint histogram of red, green and blue over a clip; square roots make dot products Hellinger affinities."""

    def __init__(self, num_bins: int = 8) -> None:
        super().__init__()
        self.num_bins, self.num_features = num_bins, num_bins**3

    def forward(self, clip: Tensor) -> Tensor:
        """Map RGB (B, 3, T, H, W) from 0 to 1 to features (B, num_bins ** 3)."""
        bins = (clip * self.num_bins).long().clamp_(0, self.num_bins - 1)
        red, green, blue = bins.flatten(2).unbind(1)  # (B, pixels)
        joint = (red * self.num_bins + green) * self.num_bins + blue
        return _counts(joint, torch.ones_like(joint, dtype=torch.float32), self.num_features).sqrt()


class FlowHistogram(nn.Module):
    """Histograms of optical flow (Laptev et al. 2008): directions weighted by magnitude, and a bin for no motion.

    There is one histogram per cell of a grid over the frame; square roots as for colors.
    """

    def __init__(self, num_directions: int = 8, grid: int = 3, static_threshold: float = 0.4) -> None:
        super().__init__()
        self.num_directions, self.grid, self.static_threshold = num_directions, grid, static_threshold
        self.num_features = grid * grid * (num_directions + 1)

    def forward(self, clip: Tensor) -> Tensor:
        """Map flow (B, 2, T, H, W) in pixels, x first, to features (B, grid * grid * (num_directions + 1))."""
        x, y = clip.unbind(1)  # (B, T, H, W)
        magnitude = torch.hypot(x, y)
        turn = (torch.atan2(y, x) / (2 * math.pi)) % 1
        direction = (turn * self.num_directions).round().long() % self.num_directions
        moving = magnitude > self.static_threshold
        bins = torch.where(moving, direction, self.num_directions)
        weights = torch.where(moving, magnitude, self.static_threshold)
        per_cell = self.num_directions + 1
        bins = bins + per_cell * self._cells(clip.shape[-2], clip.shape[-1]).to(clip.device)
        return _counts(bins.flatten(1), weights.flatten(1), self.num_features).sqrt()

    def _cells(self, height: int, width: int) -> Tensor:
        """Return the grid cell index of each pixel, (H, W)."""
        rows, columns = (torch.arange(length) * self.grid // length for length in (height, width))
        return rows[:, None] * self.grid + columns


def _counts(bins: Tensor, weights: Tensor, num_bins: int) -> Tensor:
    """Sum (B, pixels) weights by bin into (B, num_bins), normalized to a total of 1."""
    sums = torch.zeros(len(bins), num_bins, dtype=torch.float64, device=bins.device)
    sums.scatter_add_(1, bins, weights.double())
    return (sums / sums.sum(1, keepdim=True)).float()


HISTOGRAM_INPUT = (8, 64, 64)
HISTOGRAM_PREFIX = "histogram:"


@dataclass(frozen=True)
class EvalModel:
    """A frozen network that maps views (B, C, T, H, W) to features (B, D)."""

    network: nn.Module
    metadata: EncoderMetadata  # name and input of the encoder
    origin: str  # name of the checkpoint, or how the network was made
    checkpoint_sha256: str = ""
    branch: str = "online"
    path: Path | None = None  # of the checkpoint
    needs_calibration: bool = False  # batch norm has no running statistics yet: see `calibrate_`


def load_eval_model(checkpoint: Path | str, *, branch: str | None = None) -> EvalModel:
    """Load the encoder of a run folder, of any file that `load_weights` recognizes, or by name.

    Names are `timm:NAME`, `torchvision:NAME`, `transformers:FOLDER` and `histogram:NAME`.

    `branch` is online, target or guide.
    """
    if str(checkpoint).startswith(HISTOGRAM_PREFIX):
        return create_histogram_model(str(checkpoint).removeprefix(HISTOGRAM_PREFIX))
    if named_library(checkpoint) is not None:
        if branch is not None:
            raise ValueError(f"{checkpoint} has no branches: leave out {branch!r}")
        named = load_named_network(str(checkpoint))
        digest = "" if named.path is None else file_sha256(named.path)
        return EvalModel(
            named.network,
            named.network.metadata,
            str(checkpoint),
            digest,
            path=named.path,
            needs_calibration=named.is_random,
        )
    checkpoint = find_checkpoint(checkpoint)
    loaded = load_weights(checkpoint, branch=branch)
    digest = file_sha256(checkpoint)
    branch_name = loaded.report.branch.split(" ")[0]
    return EvalModel(freeze_(loaded.encoder), loaded.metadata, checkpoint.name, digest, branch_name, checkpoint)


def wrap_encoder(encoder: nn.Module) -> EvalModel:
    """Return an encoder in memory as a model to evaluate; ValueError if it has no metadata."""
    metadata = getattr(encoder, "metadata", None)
    if not isinstance(metadata, EncoderMetadata):
        raise ValueError(
            f"this {type(encoder).__name__} has no metadata, so its input is unknown; load it by load_encoder, or set "
            "encoder.metadata to an EncoderMetadata"
        )
    return EvalModel(encoder, metadata, "an encoder in memory")


def create_random_encoder(
    name: str, *, modality: str, seed: int, input_size: tuple[int, int, int] | None = None, stride: int = 1
) -> tuple[Encoder, EncoderMetadata]:
    """Create an encoder with random weights drawn from `seed`, in train mode, and its metadata."""
    modality_info = get_modality(modality)
    size = encoder_entry(name).default_input_size if input_size is None else input_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = create_model(name, in_channels=modality_info.num_channels)
    metadata = EncoderMetadata(
        encoder=name,
        in_channels=modality_info.num_channels,
        input_size=size,
        stride=stride,
        mean=modality_info.mean,
        std=modality_info.std,
        modality=modality,
        bn_eps=1e-5,
        trained=f"untrained: random weights of seed {seed}",
    )
    return encoder, metadata


def create_random_model(
    name: str, *, modality: str, seed: int = 0, input_size: tuple[int, int, int] | None = None, stride: int = 1
) -> EvalModel:
    """Create a frozen encoder with random weights, a baseline."""
    encoder, metadata = create_random_encoder(name, modality=modality, seed=seed, input_size=input_size, stride=stride)
    return EvalModel(freeze_(encoder), metadata, f"random weights of seed {seed}", needs_calibration=True)


def create_histogram_model(name: str) -> EvalModel:
    """Create a histogram baseline; `name` is color or flow."""
    if name not in ("color", "flow"):
        raise ValueError(f"unknown histogram {name!r}; choose from color, flow")
    network, channels = (ColorHistogram(), 3) if name == "color" else (FlowHistogram(), 2)
    metadata = EncoderMetadata(
        encoder=f"{name}_histogram",
        in_channels=channels,
        input_size=HISTOGRAM_INPUT,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        modality="rgb" if name == "color" else "flow",
        bn_eps=1e-5,
        trained="untrained: a histogram",
    )
    return EvalModel(freeze_(network), metadata, f"{name} histogram")
