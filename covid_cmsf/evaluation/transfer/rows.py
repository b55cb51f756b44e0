"""Features as a classifier gets them: rows and labels of a part, normalized in one of three ways."""

# N images, W windows, D feature

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.features import Features
from covid_cmsf.evaluation.linear import standardized
from covid_cmsf.evaluation.parts import part_rows
from covid_cmsf.evaluation.transfer.datasets import PARTS

Normalizing = Literal["none", "unit", "standardize"]


@dataclass(frozen=True)
class LabeledRows:
    """(N, D) features and (N,) labels."""

    rows: Tensor
    labels: Tensor

    def __post_init__(self) -> None:
        if self.rows.dim() != 2 or self.labels.shape != self.rows.shape[:1]:
            raise ValueError(
                f"rows {tuple(self.rows.shape)} and labels {tuple(self.labels.shape)} do not fit; (N, D) and (N,) do"
            )
        if len(self.rows) == 0:
            raise ValueError("there are no rows")

    def __len__(self) -> int:
        return len(self.rows)

    def and_also(self, other: "LabeledRows") -> "LabeledRows":
        """Both, one after the other."""
        return LabeledRows(torch.cat([self.rows, other.rows]), torch.cat([self.labels, other.labels]))


def parts_of(features: Features) -> dict[str, LabeledRows]:
    """train, val and test of a features file, as the backbone gives them: the mean over an image's windows."""
    if missing := [part for part in PARTS if part not in features.videos.parts]:
        there = ", ".join(sorted(set(features.videos.parts)))
        raise ValueError(f"transfer needs the parts {', '.join(PARTS)}; {', '.join(missing)} is not among: {there}")
    raw = raw_rows(features)
    chosen = {part: part_rows(features.videos, part) for part in PARTS}
    return {part: LabeledRows(raw[rows], features.videos.labels[rows]) for part, rows in chosen.items()}


def raw_rows(features: Features) -> Tensor:
    """(N, D) float32: the windows' features (W, D), not scaled, averaged over each image or video."""
    sums = torch.zeros(len(features.videos), features.windows.shape[1], dtype=torch.float64)
    sums.index_add_(0, features.window_videos, features.windows.double())
    counts = features.window_videos.bincount(minlength=len(features.videos)).clamp(min=1)
    return (sums / counts[:, None]).float()


def check_normalizing(how: str) -> None:
    """ValueError unless there is such a way."""
    if how not in get_args(Normalizing):
        raise ValueError(f"unknown way to normalize {how!r}; choose from {', '.join(get_args(Normalizing))}")


def normalized(how: str, learned: LabeledRows, asked: LabeledRows) -> tuple[LabeledRows, LabeledRows]:
    """Both sets; whatever is measured (mean and deviation) is measured on the rows that are learned from.

    none: as the backbone gives them. unit: every row has length 1. standardize: unit, then every dimension minus its
    mean over its deviation, as the linear evaluation of the CMSF code does.
    """
    check_normalizing(how)
    if how == "none":
        return learned, asked
    first, second = (F.normalize(one.rows.double(), dim=1) for one in (learned, asked))
    if how == "standardize":
        first, second = standardized(first, first, second)
    kind = learned.rows.dtype
    return LabeledRows(first.to(kind), learned.labels), LabeledRows(second.to(kind), asked.labels)
