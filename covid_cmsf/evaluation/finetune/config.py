"""Configuration of classifiers trained on clips.

The presets are those of Han et al. (2020) for linear probe and fine-tuning, and that of CompRess (Koohpayegani et al.
2020) for a linear probe on images. The attentive probe has the head of V-JEPA (`attentive.py`).
"""

from typing import Literal, get_args

from pydantic import Field

from covid_cmsf.config import Config, validate
from covid_cmsf.evaluation.features.subsets import VAL_FRACTION
from covid_cmsf.views.presets import Augmentation, get_preset

Mode = Literal["linear", "finetune", "scratch", "compress", "attentive"]


class FinetuneConfig(Config):
    """Everything that a training depends on besides encoder and clips."""

    mode: Mode
    epochs: int = Field(ge=1)
    batch_size: int = Field(default=32, ge=1)
    optimizer: Literal["sgd", "adam", "adamw"]
    lr: float = Field(gt=0)
    backbone_lr_factor: float = Field(
        ge=0, description="learning rate of the encoder relative to the head's; 0: frozen"
    )
    weight_decay: float = Field(default=1e-3, ge=0)
    milestones: tuple[float, ...] = Field(description="fractions of the epochs after which lr is divided by 10")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    normalize: bool = Field(default=False, description="scale features to unit length")
    batch_norm: bool = Field(default=False, description="then batch norm")
    standardize: bool = Field(default=False, description="then standardize by fixed statistics of the training subset")
    augmentation: Literal["coclr", "std"] = Field(default="coclr", description="std: crop and flip, for images")
    val_fraction: float = Field(
        default=VAL_FRACTION, ge=0, lt=1, description="of the training sources; 0: use the last epoch"
    )
    num_crops: Literal[1, 5, 10] = Field(default=10, description="per video at test")
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = Field(default=0, ge=0)

    def lr_at(self, epoch: int) -> float:
        """Return the head's learning rate in `epoch`, counted from 0."""
        return self.lr * 0.1 ** sum(epoch >= round(milestone * self.epochs) for milestone in self.milestones)


FINETUNE = FinetuneConfig(
    mode="finetune", epochs=500, optimizer="adam", lr=1e-3, backbone_lr_factor=0.1, milestones=(0.8, 0.9), dropout=0.9
)
PRESETS: dict[str, FinetuneConfig] = {
    "linear": FinetuneConfig(
        mode="linear",
        epochs=100,
        optimizer="sgd",
        lr=0.1,
        backbone_lr_factor=0,
        milestones=(0.6, 0.8),
        normalize=True,
        batch_norm=True,
    ),
    "compress": FinetuneConfig(
        mode="compress",
        epochs=40,
        batch_size=256,
        optimizer="sgd",
        lr=0.01,
        backbone_lr_factor=0,
        weight_decay=1e-4,
        milestones=(15 / 40, 30 / 40),
        normalize=True,
        standardize=True,
        augmentation="std",
        val_fraction=0,
        num_crops=1,
    ),
    "attentive": FinetuneConfig(
        mode="attentive",
        epochs=20,
        optimizer="adamw",
        lr=1e-3,
        backbone_lr_factor=0,
        weight_decay=1e-2,
        milestones=(0.6, 0.8),
        num_crops=1,
    ),
    "finetune": FINETUNE,
    "scratch": FINETUNE.model_copy(update={"mode": "scratch", "backbone_lr_factor": 1.0}),
}


ATTENTIVE_LRS = (3e-4, 1e-3, 3e-3)  # the best on validation is taken


def finetune_config(mode: str, **overrides: object) -> FinetuneConfig:
    """Return the preset of a mode with overrides; those that are None are ignored."""
    if mode not in PRESETS:
        raise ValueError(f"unknown mode {mode!r}; choose from {', '.join(get_args(Mode))}")
    given = {key: value for key, value in overrides.items() if value is not None}
    return validate(FinetuneConfig, {**PRESETS[mode].model_dump(), **given}, origin=f"mode {mode}")


def train_augmentation(name: str, size: int) -> Augmentation:
    """Return `coclr`: crop, flip, color jitter with probability 0.3; or `std`: that of PyTorch's ImageNet example.

    Color jitter is not applied to flow (see `views.pipeline`).
    """
    if name == "std":
        return get_preset("std", "image", size=size)
    return get_preset("finetune", "rgb", size=size)
