"""Encoder with a classifier, and its checkpoint.

The checkpoint is a training checkpoint (docs/reference/files.md): `load_weights` reads the encoder from it, so a
fine-tuned network can be evaluated like any other.
"""

# B batch, C channels, T frames, H W pixels

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from covid_cmsf.evaluation.features.model import EvalModel
from covid_cmsf.evaluation.finetune.attentive import AttentiveClassifier
from covid_cmsf.evaluation.finetune.config import FinetuneConfig
from covid_cmsf.models import Classifier, Encoder, EncoderMetadata, freeze_
from covid_cmsf.models.checkpoints.formats.native import CHECKPOINT_FORMAT
from covid_cmsf.models.checkpoints.reader import read_checkpoint_file


class ClipClassifier(nn.Module):
    """Map clips (B, C, T, H, W) to logits (B, num_classes)."""

    def __init__(self, encoder: Encoder, num_classes: int, config: FinetuneConfig) -> None:
        super().__init__()
        self.encoder, self.attends = encoder, config.mode == "attentive"
        self.classifier = _make_head(encoder, num_classes, config)

    def forward(self, clip: Tensor) -> Tensor:
        """Return the logits."""
        logits: Tensor = self.classifier(self.features(clip))
        return logits

    def features(self, clip: Tensor) -> Tensor:
        """Return what the head sees, in float32; a frozen encoder runs without gradients."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.encoder.frozen):
            feature: Tensor = self.encoder.forward_features(clip) if self.attends else self.encoder(clip)
        return feature.float()


def _make_head(encoder: Encoder, num_classes: int, config: FinetuneConfig) -> Classifier | AttentiveClassifier:
    if config.mode == "attentive":
        return AttentiveClassifier(encoder.num_map_features, num_classes, dropout=config.dropout)
    return Classifier(
        encoder.num_features,
        num_classes,
        dropout=config.dropout,
        normalize=config.normalize,
        batch_norm=config.batch_norm,
        standardize=config.standardize,
    )


def build_classifier(eval_model: EvalModel, num_classes: int, config: FinetuneConfig) -> ClipClassifier:
    """Build a classifier on a copy of the model's encoder, frozen or trainable; the head is drawn from the seed."""
    encoder = copy.deepcopy(eval_model.network)
    assert isinstance(encoder, Encoder), "only an Encoder can be trained, not a histogram"
    if config.backbone_lr_factor == 0:
        freeze_(encoder)
    else:
        encoder.frozen = False
        encoder.requires_grad_(True).train()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(config.seed)
        return ClipClassifier(encoder, num_classes, config)


def build_optimizer(network: ClipClassifier, config: FinetuneConfig) -> torch.optim.Optimizer:
    """Build the optimizer; `scale` of each parameter group is its learning rate relative to the head's."""
    groups: list[dict[str, Any]] = [{"params": list(network.classifier.parameters()), "scale": 1.0}]
    if config.backbone_lr_factor > 0:
        groups.append({"params": list(network.encoder.parameters()), "scale": config.backbone_lr_factor})
    fused = next(network.parameters()).is_cuda
    if config.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=config.lr, momentum=0.9, weight_decay=config.weight_decay, fused=fused)
    if config.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=config.lr, weight_decay=config.weight_decay, fused=fused)
    return torch.optim.Adam(groups, lr=config.lr, weight_decay=config.weight_decay, fused=fused)


def classifier_state(network: ClipClassifier, metadata: EncoderMetadata) -> dict[str, Any]:
    """Return the content of a checkpoint."""
    state = {f"online.encoder.{key}": value for key, value in network.encoder.state_dict().items()}
    state |= {f"classifier.{key}": value for key, value in network.classifier.state_dict().items()}
    return {"format": CHECKPOINT_FORMAT, "encoder": metadata.model_dump(mode="json"), "state": state}


def load_classifier_state_(network: ClipClassifier, values: dict[str, Any]) -> None:
    """Load what `classifier_state` returned into a network of the same shape."""
    state = values["state"]
    for prefix, module in (("online.encoder.", network.encoder), ("classifier.", network.classifier)):
        module_state = {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}
        module.load_state_dict(module_state, strict=True)


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `write_torch_file` wrote, on the CPU; ValueError if it is damaged."""
    return dict(read_checkpoint_file(path).values)
