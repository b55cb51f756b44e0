"""How a classifier is trained on clips: the recipes of Han et al. (2020) for linear probe and fine-tuning, and that of
CompRess (Koohpayegani et al. 2020) for a linear probe on images."""

from typing import Literal, get_args

from pydantic import Field

from covid_cmsf.config import Settings, validate
from covid_cmsf.evaluation.parts import VAL_SHARE
from covid_cmsf.views.augmentation import Augmentation, preset

Mode = Literal["linear", "finetune", "scratch", "compress"]


class Recipe(Settings):
    """Everything that decides a training, besides encoder and clips."""

    mode: Mode
    epochs: int = Field(ge=1)
    batch_size: int = Field(default=32, ge=1)
    optimizer: Literal["sgd", "adam"]
    lr: float = Field(gt=0)
    backbone_factor: float = Field(ge=0, description="the encoder's learning rate over the head's; 0: frozen")
    weight_decay: float = Field(default=1e-3, ge=0)
    drops: tuple[float, ...] = Field(description="shares of the training after which the rate is divided by 10")
    dropout: float = Field(default=0.0, ge=0, lt=1)
    normalize: bool = Field(default=False, description="features are scaled to unit length")
    batch_norm: bool = Field(default=False, description="then standardized, batch by batch")
    standardize: bool = Field(default=False, description="or by fixed statistics of the training part")
    augmentation: Literal["coclr", "std"] = Field(default="coclr", description="std: crop and flip, for images")
    val_share: float = Field(default=VAL_SHARE, ge=0, lt=1, description="of the training sources; 0: last epoch")
    num_crops: Literal[1, 5, 10] = Field(default=10, description="at test")
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = Field(default=0, ge=0)

    def learning_rate(self, epoch: int) -> float:
        """The head's rate in an epoch, counted from 0."""
        return self.lr * 0.1 ** sum(epoch >= round(drop * self.epochs) for drop in self.drops)


FINETUNE = Recipe(
    mode="finetune", epochs=500, optimizer="adam", lr=1e-3, backbone_factor=0.1, drops=(0.8, 0.9), dropout=0.9
)
RECIPES: dict[str, Recipe] = {
    "linear": Recipe(
        mode="linear",
        epochs=100,
        optimizer="sgd",
        lr=0.1,
        backbone_factor=0,
        drops=(0.6, 0.8),
        normalize=True,
        batch_norm=True,
    ),
    "compress": Recipe(
        mode="compress",
        epochs=40,
        batch_size=256,
        optimizer="sgd",
        lr=0.01,
        backbone_factor=0,
        weight_decay=1e-4,
        drops=(15 / 40, 30 / 40),
        normalize=True,
        standardize=True,
        augmentation="std",
        val_share=0,
        num_crops=1,
    ),
    "finetune": FINETUNE,
    "scratch": FINETUNE.model_copy(update={"mode": "scratch", "backbone_factor": 1.0}),
}


def recipe(mode: str, **changes: object) -> Recipe:
    """The recipe of that name; `changes` that are None change nothing."""
    if mode not in RECIPES:
        raise ValueError(f"unknown recipe {mode!r}; choose from {', '.join(get_args(Mode))}")
    said = {key: value for key, value in changes.items() if value is not None}
    return validate(Recipe, {**RECIPES[mode].model_dump(), **said}, place=f"recipe {mode}")


def training_augmentation(name: str, size: int) -> Augmentation:
    """`coclr`: crop, flip, and colors of three clips in ten; flow is never colored (`views.making` sees to that).

    `std`: crop and flip of PyTorch's ImageNet example.
    """
    if name == "std":
        return preset("std", "image", size=size)
    return Augmentation(size=size, scale=(0.2, 1.0), jitter=0.3)
