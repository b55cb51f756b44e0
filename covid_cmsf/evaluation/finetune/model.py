"""Encoder and classifier together, and the file that holds them.

The file is a training checkpoint (docs/reference/files.md): `load_weights` takes the encoder out of it, so a fine-tuned
network can be extracted from and evaluated like any other.
"""

# B batch, C channels, T frames, H W pixels

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.finetune.config import FinetuneConfig
from covid_cmsf.files import atomic_path
from covid_cmsf.models import Classifier, Encoder, EncoderMetadata, freeze_

FORMAT = 1


class ClipClassifier(nn.Module):
    """A clip (B, C, T, H, W) -> class scores (B, num_classes)."""

    def __init__(self, encoder: Encoder, num_classes: int, config: FinetuneConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.classifier = Classifier(
            encoder.num_features,
            num_classes,
            dropout=config.dropout,
            normalize=config.normalize,
            batch_norm=config.batch_norm,
            standardize=config.standardize,
        )

    def forward(self, clip: Tensor) -> Tensor:
        """Scores before the softmax."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder.frozen):
            feature = self.encoder(clip)
        logits: Tensor = self.classifier(feature.float())
        return logits


def build_classifier(eval_model: EvalModel, num_classes: int, config: FinetuneConfig) -> ClipClassifier:
    """A copy of the subject's encoder, frozen or awake as the recipe says, with a new head drawn by its seed."""
    encoder = copy.deepcopy(eval_model.network)
    assert isinstance(encoder, Encoder), "only encoders of the zoo can be trained"
    if config.backbone_lr_factor == 0:
        freeze_(encoder)
    else:
        encoder.frozen = False
        encoder.requires_grad_(True).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ClipClassifier(encoder, num_classes, config)


def build_optimizer(network: ClipClassifier, config: FinetuneConfig) -> torch.optim.Optimizer:
    """The head at the full rate, the encoder at its share; `scale` of each group says which."""
    groups: list[dict[str, Any]] = [{"params": list(network.classifier.parameters()), "scale": 1.0}]
    if config.backbone_lr_factor > 0:
        groups.append({"params": list(network.encoder.parameters()), "scale": config.backbone_lr_factor})
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay)
    return torch.optim.Adam(groups, lr=config.lr, weight_decay=config.weight_decay)


def classifier_state(network: ClipClassifier, metadata: EncoderMetadata) -> dict[str, Any]:
    """What a file of this network holds."""
    state = {f"online.encoder.{key}": value for key, value in network.encoder.state_dict().items()}
    state |= {f"classifier.{key}": value for key, value in network.classifier.state_dict().items()}
    return {"format": FORMAT, "encoder": metadata.model_dump(mode="json"), "state": state}


def load_classifier_state_(network: ClipClassifier, values: dict[str, Any]) -> None:
    """Puts what `state_of` gave back into a network of the same shape."""
    state = values["state"]
    for prefix, module in (("online.encoder.", network.encoder), ("classifier.", network.classifier)):
        own_state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        module.load_state_dict(own_state, strict=True)


def save_checkpoint(path: Path, values: dict[str, Any]) -> None:
    """Writes a torch file, whole or not at all."""
    with atomic_path(path) as temporary:
        torch.save(values, temporary)


def load_checkpoint(path: Path, device: torch.device) -> dict[str, Any]:
    """Reads what `save_values` wrote."""
    checkpoint: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    return checkpoint
