"""What is evaluated: a network with what is known about it, from a file, with random weights, or a histogram."""

# B batch, C channels, T frames, H W pixels, D feature

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from covid_cmsf.evaluation.histograms import ColorHistogram, FlowHistogram
from covid_cmsf.hashes import file_sha256
from covid_cmsf.models import Encoder, EncoderCard, create_encoder, encoder_entry, freeze_, load_weights
from covid_cmsf.views.modalities import modality as modality_of

HISTOGRAM_INPUT = (8, 64, 64)


@dataclass(frozen=True)
class Subject:
    """`network` takes views (B, C, T, H, W) and gives features (B, D); it is frozen."""

    network: nn.Module
    card: EncoderCard  # its input and its name
    origin: str
    checkpoint_sha256: str = ""
    part: str = "online"
    uncalibrated: bool = False  # its batch norms have seen nothing yet: see `calibration`


def subject_from(checkpoint: Path | str, *, part: str | None = None) -> Subject:
    """The encoder in a file: ours, or any that `load_weights` recognizes; `part` is online, target or guide."""
    checkpoint = Path(checkpoint)
    loaded = load_weights(checkpoint, part=part)
    digest = file_sha256(checkpoint)
    return Subject(freeze_(loaded.encoder), loaded.card, checkpoint.name, digest, loaded.report.part.split(" ")[0])


def new_encoder(
    name: str, *, modality: str, seed: int, input_size: tuple[int, int, int] | None = None, stride: int = 1
) -> tuple[Encoder, EncoderCard]:
    """An encoder of the zoo with random weights that follow from the seed, and its card. In train mode."""
    seen = modality_of(modality)
    size = encoder_entry(name).usual_input if input_size is None else input_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        encoder = create_encoder(name, in_channels=seen.num_channels)
    card = EncoderCard(
        encoder=name,
        in_channels=seen.num_channels,
        input_size=size,
        stride=stride,
        mean=seen.mean,
        std=seen.std,
        modality=modality,
        bn_eps=1e-5,
        trained=f"not at all: random weights of seed {seed}",
    )
    return encoder, card


def random_subject(
    name: str, *, modality: str, seed: int = 0, input_size: tuple[int, int, int] | None = None, stride: int = 1
) -> Subject:
    """An encoder that learned nothing: the control of every result."""
    encoder, card = new_encoder(name, modality=modality, seed=seed, input_size=input_size, stride=stride)
    return Subject(freeze_(encoder), card, f"random weights of seed {seed}", uncalibrated=True)


def histogram_subject(name: str) -> Subject:
    """`color` or `flow`: histograms of what any camera sees, no network at all."""
    if name not in ("color", "flow"):
        raise ValueError(f"unknown histogram {name!r}; choose from color, flow")
    network, channels = (ColorHistogram(), 3) if name == "color" else (FlowHistogram(), 2)
    card = EncoderCard(
        encoder=f"{name}_histogram",
        in_channels=channels,
        input_size=HISTOGRAM_INPUT,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        modality="rgb" if name == "color" else "flow",
        bn_eps=1e-5,
        trained="nothing to train",
    )
    return Subject(freeze_(network), card, f"{name} histogram")
