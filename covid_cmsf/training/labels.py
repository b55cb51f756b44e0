"""Which labels a method sees: all, some of them wrong, or only a few."""

# N videos or images

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips.labels.fractions import known_by_list, known_share
from covid_cmsf.clips.labels.names import name_of
from covid_cmsf.clips.labels.noise import noisy_labels, read_noisy_file
from covid_cmsf.clips.manifest import ClipRecord
from covid_cmsf.training.settings import LabelSettings


def listed_only(records: Sequence[ClipRecord], chosen: LabelSettings) -> list[ClipRecord]:
    """The records that the label file lists; it replaces the list of samples, as in the official code."""
    if chosen.file is None:
        return list(records)
    listed = read_noisy_file(Path(chosen.file)).labels
    kept = [record for record in records if name_of(record) in listed]
    if len(kept) < len(listed):
        missing = sorted(set(listed) - {name_of(record) for record in kept})
        raise ValueError(f"{chosen.file} lists {len(missing)} names that are not in this part, the first: {missing[0]}")
    return kept


def seen_labels(records: Sequence[ClipRecord], chosen: LabelSettings) -> Tensor:
    """(N,) what a method may see of the true labels; -1 is hidden or unknown. First noise, then the few of it."""
    if chosen.file is not None:
        listed = read_noisy_file(Path(chosen.file)).labels
        labels = np.array([listed[name_of(record)] for record in records], dtype=np.int64)
    else:
        labels = noisy_labels(records, rate=chosen.noise, seed=chosen.seed, stratified=chosen.stratified)
    if chosen.known is not None:
        labels = known_by_list(records, labels, Path(chosen.known))
    elif chosen.share < 1:
        labels = known_share(labels, share=chosen.share, seed=chosen.seed)
    return torch.from_numpy(labels)
