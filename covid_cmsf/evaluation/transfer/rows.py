"""Features as a classifier gets them: rows and labels of a part, normalised in one of three ways."""

# N images, W windows, D feature

from dataclasses import dataclass
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from covid_cmsf.evaluation.features import Features
from covid_cmsf.evaluation.linear import standardised
from covid_cmsf.evaluation.parts import part_rows
from covid_cmsf.evaluation.transfer.datasets import PARTS

Normalising = Literal["none", "unit", "standardise"]


@dataclass(frozen=True)
class LabelledRows:
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

    def and_also(self, other: "LabelledRows") -> "LabelledRows":
        """Both, one after the other."""
        return LabelledRows(torch.cat([self.rows, other.rows]), torch.cat([self.labels, other.labels]))


def parts_of(features: Features) -> dict[str, LabelledRows]:
    """train, val and test of a features file, as the backbone gives them: the mean over an image's windows."""
    if missing := [part for part in PARTS if part not in features.videos.parts]:
        there = ", ".join(sorted(set(features.videos.parts)))
        raise ValueError(f"transfer needs the parts {', '.join(PARTS)}; {', '.join(missing)} is not among: {there}")
    raw = raw_rows(features)
    chosen = {part: part_rows(features.videos, part) for part in PARTS}
    return {part: LabelledRows(raw[rows], features.videos.labels[rows]) for part, rows in chosen.items()}


def raw_rows(features: Features) -> Tensor:
    """(N, D) float32: the windows' features (W, D), not scaled, averaged over each image or video."""
    sums = torch.zeros(len(features.videos), features.windows.shape[1], dtype=torch.float64)
    sums.index_add_(0, features.window_videos, features.windows.double())
    counts = features.window_videos.bincount(minlength=len(features.videos)).clamp(min=1)
    return (sums / counts[:, None]).float()


def check_normalising(how: str) -> None:
    """ValueError unless there is such a way."""
    if how not in get_args(Normalising):
        raise ValueError(f"unknown way to normalise {how!r}; choose from {', '.join(get_args(Normalising))}")


def normalised(how: str, learned: LabelledRows, asked: LabelledRows) -> tuple[LabelledRows, LabelledRows]:
    """Both sets; whatever is measured (mean and deviation) is measured on the rows that are learned from.

    none: as the backbone gives them. unit: every row has length 1. standardise: unit, then every dimension minus its
    mean over its deviation, as the linear evaluation of the CMSF code does.
    """
    check_normalising(how)
    if how == "none":
        return learned, asked
    first, second = (F.normalize(one.rows.double(), dim=1) for one in (learned, asked))
    if how == "standardise":
        first, second = standardised(first, first, second)
    kind = learned.rows.dtype
    return LabelledRows(first.to(kind), learned.labels), LabelledRows(second.to(kind), asked.labels)
