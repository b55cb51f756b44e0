"""Parts of a split: train and test as the split has them; fit and val, cut from the training sources.

Whatever is chosen by looking at results (regularization, epochs, a recipe) is chosen on `val`. A source never stands in
both, and the cut follows from names and seed alone, not from the order of rows.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.evaluation.videos import UNLABELED, Videos

VAL_SHARE = 0.2
PARTS = ("train", "test", "val", "fit")


def part_rows(videos: Videos, name: str, *, val_share: float = VAL_SHARE, seed: int = 0) -> Tensor:
    """The rows of a part, in order; ValueError when there are none or some of them have no label.

    `val` is the split's own part of that name where there is one; else it and `fit` are cut from train.
    """
    if name not in PARTS:
        raise ValueError(f"unknown part {name!r}; choose from {', '.join(PARTS)}")
    own = "val" in videos.parts
    if name in ("fit", "val") and not own:
        train = part_rows(videos, "train")
        fit, val = fit_and_val(videos.take(train), val_share=val_share, seed=seed)
        return train[fit if name == "fit" else val]
    wanted = "train" if name == "fit" else name
    rows = torch.tensor([i for i, part in enumerate(videos.parts) if part == wanted], dtype=torch.int64)
    if len(rows) == 0:
        there = ", ".join(sorted(set(videos.parts))) or "none"
        raise ValueError(f"no video is in part {name!r}; the parts here are: {there}")
    unlabeled = int((videos.labels[rows] == UNLABELED).sum())
    if unlabeled:
        raise ValueError(f"{unlabeled} of the {len(rows)} videos of part {name!r} have no label to compare with")
    return rows


def fit_and_val(videos: Videos, *, val_share: float = VAL_SHARE, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Rows to fit on and rows to choose by: about `val_share` of the sources of every class go to the second."""
    held_out = validation_sources(videos.sources, videos.labels.tolist(), share=val_share, seed=seed)
    inside = torch.tensor([source in held_out for source in videos.sources])
    return (~inside).nonzero().flatten(), inside.nonzero().flatten()


def validation_sources(sources: Sequence[str], labels: Sequence[int], *, share: float, seed: int) -> set[str]:
    """The sources to hold out: of every class with two or more, at least one and at most all but one.

    A source whose videos have several labels counts for the most frequent of them.
    """
    if not 0 < share < 1:
        raise ValueError(f"the validation share must be between 0 and 1, not {share}")
    votes: dict[str, Counter[int]] = {}
    for source, label in zip(sources, labels, strict=True):
        votes.setdefault(source, Counter())[label] += 1
    classes: dict[int, list[str]] = {}
    for source in sorted(votes):
        most = max(votes[source].values())
        classes.setdefault(min(label for label, n in votes[source].items() if n == most), []).append(source)
    held_out: set[str] = set()
    for label, names in classes.items():
        count = min(max(1, round(share * len(names))), len(names) - 1)
        order = np.random.default_rng([seed, label + 1]).permutation(len(names))  # -1 is a label, too
        held_out |= {names[i] for i in order[:count]}
    if not held_out:
        raise ValueError("no class has two sources in the training part, so none can be held out for validation")
    return held_out
