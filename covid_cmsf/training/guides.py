"""Guides: frozen encoders of other modalities. They are loaded, checked, used, and at the end proven unchanged."""

# B batch, D embedding

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from covid_cmsf.models import Embedder, Encoder, freeze_, load_weights
from covid_cmsf.models.fingerprint import weights_sha256
from covid_cmsf.models.weights.card import EncoderCard
from covid_cmsf.training.settings import GuideSettings
from covid_cmsf.views.modalities import Modality, modality


class Guide(nn.Module):
    """A frozen network; `column` is its column in the bank, `modality` what it sees."""

    def __init__(self, network: Embedder | Encoder, *, column: str, modality: str, words: str) -> None:
        super().__init__()
        self.network, self.column, self.modality, self.words = freeze_(network), column, modality, words
        self.fingerprint = weights_sha256(self.network)

    @property
    def size(self) -> int:
        """Width of its embeddings."""
        if isinstance(self.network, Embedder):
            return self.network.projector.layout.sizes[-1]
        return self.network.num_features

    @torch.no_grad()
    def forward(self, view: Tensor) -> Tensor:
        """(B, C, T, H, W) -> unit vectors (B, D) in fp32."""
        return nn.functional.normalize(self.network(view).float(), dim=1)

    def check_unchanged(self) -> None:
        """RuntimeError when a weight or a batch-norm statistic is not what it was at the start."""
        if weights_sha256(self.network) != self.fingerprint:
            raise RuntimeError(f"the guide {self.words} has changed during the run, so its results mean nothing")


def load_guides(chosen: Sequence[GuideSettings], *, flow_style: str) -> list[Guide]:
    """The guides of a run, each in a column named after its modality."""
    guides: list[Guide] = []
    for number, settings in enumerate(chosen):
        same = sum(one.modality == settings.modality for one in chosen[:number])
        column = f"guide_{settings.modality}" + (f"_{same + 1}" if same else "")
        if not Path(settings.weights).exists():
            raise FileNotFoundError(f"guides[{number}].weights: no file {settings.weights}; train the guide first")
        loaded = load_weights(settings.weights, part=settings.part, keep_head=settings.layer == "projector")
        _check(loaded.card, modality(settings.modality, flow_style=flow_style), settings)  # type: ignore[arg-type]
        network = loaded.encoder if loaded.projector is None else Embedder(loaded.encoder, loaded.projector)
        words = f"{settings.weights} ({settings.modality}, {loaded.card.encoder}, {loaded.card.trained})"
        guides.append(Guide(network, column=column, modality=settings.modality, words=words))
    return guides


def _check(card: EncoderCard, seen: Modality, settings: GuideSettings) -> None:
    """The guide must have been trained on what it will see."""
    if card.in_channels != seen.num_channels:
        raise ValueError(
            f"guide {settings.weights} takes {card.in_channels} channels, and {seen.name} has {seen.num_channels}; "
            "for CoCLR's flow networks set views.flow_style=coclr"
        )
    if card.modality not in ("unknown", seen.name) and {card.modality, seen.name} != {"rgb", "frame"}:
        raise ValueError(f"guide {settings.weights} was trained on {card.modality}, not on {seen.name}")
