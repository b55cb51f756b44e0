"""The videos that a classifier is trained, validated and tested on."""

from dataclasses import dataclass

import torch
from torch import Tensor

from covid_cmsf.evaluation.features.subsets import VAL_FRACTION, VideoTable, split_fit_val, subset_indices
from covid_cmsf.evaluation.finetune.config import FinetuneConfig


@dataclass(frozen=True)
class FinetuneSubsets:
    """Indices of the training, validation and test videos."""

    fit: list[int]
    val: list[int]
    test: list[int]

    def train_and_test_indices(self) -> tuple[Tensor, Tensor]:
        """Return the indices of training and validation together, and those of the test."""
        return torch.tensor([*self.fit, *self.val]), torch.tensor(self.test)


def choose_subsets(videos: VideoTable, config: FinetuneConfig, *, query: str = "test") -> FinetuneSubsets:
    """Return the query subset as test, and the training subset split by source into fit and val."""
    fraction = config.val_fraction or VAL_FRACTION
    test = subset_indices(videos, query, val_fraction=fraction, seed=config.seed)
    train = subset_indices(videos, "fit" if query == "val" else "train", val_fraction=fraction, seed=config.seed)
    if config.val_fraction == 0:
        return FinetuneSubsets(train.tolist(), [], test.tolist())
    fit, val = split_fit_val(videos.take(train), val_fraction=config.val_fraction, seed=config.seed)
    return FinetuneSubsets(train[fit].tolist(), train[val].tolist(), test.tolist())
