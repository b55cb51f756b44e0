"""Encoder and classifier together, and the file that holds them.

The file is a training checkpoint of ours (docs/models.md): `load_weights` takes the encoder out of it, so a fine-tuned
network can be extracted from and evaluated like any other.
"""

# B batch, C channels, T frames, H W pixels

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covid_cmsf.atomic import atomic_path
from covid_cmsf.evaluation.recipes import Recipe
from covid_cmsf.evaluation.subjects import Subject
from covid_cmsf.models import Classifier, Encoder, EncoderCard, freeze_

FORMAT = 1


class ClipClassifier(nn.Module):
    """A clip (B, C, T, H, W) -> class scores (B, num_classes)."""

    def __init__(self, encoder: Encoder, num_classes: int, recipe: Recipe) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = Classifier(
            encoder.num_features,
            num_classes,
            dropout=recipe.dropout,
            normalize=recipe.normalize,
            batch_norm=recipe.batch_norm,
            standardize=recipe.standardize,
        )

    def forward(self, clip: Tensor) -> Tensor:
        """Scores before the softmax."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder.frozen):
            feature = self.encoder(clip)
        return self.classifier(feature.float())


def build_classifier(subject: Subject, num_classes: int, recipe: Recipe) -> ClipClassifier:
    """A copy of the subject's encoder, frozen or awake as the recipe says, with a new head drawn by its seed."""
    encoder = copy.deepcopy(subject.network)
    assert isinstance(encoder, Encoder), "only encoders of the zoo can be trained"
    if recipe.backbone_factor == 0:
        freeze_(encoder)
    else:
        encoder.frozen = False
        encoder.requires_grad_(True).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.seed)
        return ClipClassifier(encoder, num_classes, recipe)


def build_optimizer(network: ClipClassifier, recipe: Recipe) -> torch.optim.Optimizer:
    """The head at the full rate, the encoder at its share; `scale` of each group says which."""
    groups: list[dict[str, Any]] = [{"params": list(network.classifier.parameters()), "scale": 1.0}]
    if recipe.backbone_factor > 0:
        groups.append({"params": list(network.encoder.parameters()), "scale": recipe.backbone_factor})
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.lr, momentum=0.9, weight_decay=recipe.weight_decay)
    return torch.optim.Adam(groups, lr=recipe.lr, weight_decay=recipe.weight_decay)


def state_of(network: ClipClassifier, card: EncoderCard) -> dict[str, Any]:
    """What a file of this network holds."""
    state = {f"online.encoder.{key}": value for key, value in network.encoder.state_dict().items()}
    state |= {f"classifier.{key}": value for key, value in network.classifier.state_dict().items()}
    return {"format": FORMAT, "encoder": card.model_dump(mode="json"), "state": state}


def load_state_(network: ClipClassifier, values: dict[str, Any]) -> None:
    """Puts what `state_of` gave back into a network of the same shape."""
    state = values["state"]
    for prefix, part in (("online.encoder.", network.encoder), ("classifier.", network.classifier)):
        own = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        part.load_state_dict(own, strict=True)


def save_values(path: Path, values: dict[str, Any]) -> None:
    """Writes a torch file, whole or not at all."""
    with atomic_path(path) as temporary:
        torch.save(values, temporary)


def load_values(path: Path, device: torch.device) -> dict[str, Any]:
    """Reads what `save_values` wrote."""
    return torch.load(path, map_location=device, weights_only=True)
