"""Videos of a features file (ids, sources, labels, subsets), and how subsets are selected.

`train`, `val` and `test` are those of the split. Without a `val`, `fit` and `val` are cut from the training sources:
hyper-parameters and epochs are selected on `val`. A source is never in both, and the cut depends on names and seed, not
on the order of the videos.
"""

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from covid_cmsf.clips.acceptance import ACCEPTED
from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.cuts import describe_contents
from covid_cmsf.clips.records import ClipRecord, get_column, read_split, take_records

# N videos

UNLABELED = -1
VAL_FRACTION = 0.2
SUBSETS = ("train", "test", "val", "fit")
NEEDS_LABELS = "R@k, kNN and probes need; `covid-cmsf evaluate neighbors` and `evaluate unlabeled` work without"


@dataclass(frozen=True)
class VideoTable:
    """Columns with one entry per video. `class_names[label]` is empty for a label that no video has."""

    ids: tuple[str, ...]
    sources: tuple[str, ...]
    labels: Tensor  # (N,) int64; -1 when unlabeled
    subsets: tuple[str, ...]  # train, test, val
    class_names: tuple[str, ...]
    contents: Tensor | None = None  # (N,) int64: equal for equal original files and cuts; 0 or None: unknown

    @classmethod
    def from_records(cls, records: Sequence[ClipRecord], subsets: Sequence[str]) -> "VideoTable":
        """Build the table of clip records."""
        ids, sources, labels, class_names = (  # columns: a record per video would take longer than all the rest
            get_column(records, name) for name in ("video_id", "source", "label", "class_name")
        )
        names = {label: name for label, name in zip(labels, class_names, strict=True) if label != UNLABELED}
        return cls(
            ids=tuple(ids),
            sources=tuple(source or video_id for source, video_id in zip(sources, ids, strict=True)),
            labels=torch.tensor(labels, dtype=torch.int64),
            subsets=tuple(subsets),
            class_names=tuple(names.get(label, "") for label in range(max(names, default=-1) + 1)),
            contents=torch.tensor(list(map(_content_code, describe_contents(records))), dtype=torch.int64),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, index: Tensor) -> "VideoTable":
        """Select videos by index, in the given order; labels and class names stay."""
        indices = index.tolist()
        return VideoTable(
            ids=tuple(self.ids[i] for i in indices),
            sources=tuple(self.sources[i] for i in indices),
            labels=self.labels[index],
            subsets=tuple(self.subsets[i] for i in indices),
            class_names=self.class_names,
            contents=None if self.contents is None else self.contents[index],
        )


def _content_code(content: str) -> int:
    """Return 8 bytes that stand for a file's hash; two files of a million get the same with probability 3e-8."""
    if not content:
        return 0
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:8], "big", signed=True)


def check_video_table(videos: VideoTable, *, location: str) -> None:
    """Raise ValueError naming `location` if the columns of a table that was read do not fit together."""
    num_classes = len(videos.class_names)
    columns: dict[str, Sized] = {"sources": videos.sources, "labels": videos.labels, "subsets": videos.subsets}
    if videos.contents is not None:
        columns["contents"] = videos.contents
    if differing := [name for name, column in columns.items() if len(column) != len(videos.ids)]:
        lengths = f"{len(videos.ids)} ids, {len(columns[differing[0]])} {differing[0]}"
        raise ValueError(f"{location}: the columns of the video table differ in length: {lengths}")
    if len(set(videos.ids)) != len(videos.ids):
        raise ValueError(f"{location}: a video is listed twice")
    labels = videos.labels
    if len(labels) and not UNLABELED <= int(labels.min()) <= int(labels.max()) < max(1, num_classes):
        raise ValueError(f"{location}: labels must be -1 to {num_classes - 1}, one per class name")


def subset_indices(videos: VideoTable, name: str, *, val_fraction: float = VAL_FRACTION, seed: int = 0) -> Tensor:
    """Return the indices of a subset, ascending; ValueError if it is empty or has unlabeled videos.

    `val` is that of the split if there is one; otherwise `val` and `fit` are cut from `train`.
    """
    if name not in SUBSETS:
        raise ValueError(f"unknown subset {name!r}; choose from {', '.join(SUBSETS)}")
    if len(videos) and bool((videos.labels == UNLABELED).all()):
        raise ValueError(f"none of the {len(videos)} videos has a label, which {NEEDS_LABELS}")
    has_val = "val" in videos.subsets
    if name in ("fit", "val") and not has_val:
        train = subset_indices(videos, "train")
        fit, val = split_fit_val(videos.take(train), val_fraction=val_fraction, seed=seed)
        return train[fit if name == "fit" else val]
    stored_name = "train" if name == "fit" else name
    indices = torch.tensor([i for i, subset in enumerate(videos.subsets) if subset == stored_name], dtype=torch.int64)
    if len(indices) == 0:
        present = ", ".join(sorted(set(videos.subsets))) or "none"
        raise ValueError(f"subset {name!r} is empty; subsets with videos: {present}")
    unlabeled = int((videos.labels[indices] == UNLABELED).sum())
    if unlabeled:
        raise ValueError(
            f"{unlabeled} of the {len(indices)} videos of subset {name!r} have no label, which {NEEDS_LABELS}"
        )
    return indices


def split_fit_val(videos: VideoTable, *, val_fraction: float = VAL_FRACTION, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return indices to fit on and to validate on: about `val_fraction` of the sources of every class."""
    held_out = choose_validation_sources(videos.sources, videos.labels.tolist(), fraction=val_fraction, seed=seed)
    is_val = torch.tensor([source in held_out for source in videos.sources])
    return (~is_val).nonzero().flatten(), is_val.nonzero().flatten()


def choose_validation_sources(sources: Sequence[str], labels: Sequence[int], *, fraction: float, seed: int) -> set[str]:
    """Choose the sources to hold out: of every class with two or more, at least one and at most all but one.

    A source whose videos have several labels counts for the most frequent of them.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"the validation fraction must be between 0 and 1, not {fraction}")
    votes: dict[str, Counter[int]] = {}
    for source, label in zip(sources, labels, strict=True):
        votes.setdefault(source, Counter())[label] += 1
    classes: dict[int, list[str]] = {}
    for source in sorted(votes):
        max_count = max(votes[source].values())
        classes.setdefault(min(label for label, n in votes[source].items() if n == max_count), []).append(source)
    held_out: set[str] = set()
    for label, names in classes.items():
        count = min(max(1, round(fraction * len(names))), len(names) - 1)
        order = np.random.default_rng([seed, label + 1]).permutation(len(names))  # + 1 because unlabeled is -1
        held_out |= {names[i] for i in order[:count]}
    if not held_out:
        raise ValueError(
            "every class has a single source in the training subset, so none can be held out for validation"
        )
    return held_out


@dataclass(frozen=True)
class SplitVideos:
    """Videos of a split; `subsets[i]` belongs to `records[i]`.

    `missing` has id, subset and reason of videos that the split lists but the clips do not have.
    """

    name: str
    records: Sequence[ClipRecord]
    subsets: tuple[str, ...]
    missing: tuple[tuple[str, str, str], ...]


def load_split(clips: Clips, name: str | None = None) -> SplitVideos:
    """Return the videos of a split, in the order of the clips. `name` is a split of the clips, or a CSV file.

    The default is the split "1", or the only one.
    """
    split_name, table = _split_table(clips, name)
    ids = get_column(clips.records, "video_id")
    chosen = [index for index, video_id in enumerate(ids) if video_id in table]
    if not chosen:
        raise ValueError(f"none of the {len(table)} videos of split {split_name!r} is among these clips")
    reasons = {failure.video_id: f"{failure.stage}: {failure.reason}" for failure in getattr(clips, "failures", [])}
    for failure in getattr(clips, "accepted", []):
        reasons[failure.video_id] = ACCEPTED + reasons[failure.video_id]
    available = set(ids)
    missing = tuple(
        (video_id, subset, reasons.get(video_id, "not among the clips"))
        for video_id, subset in sorted(table.items())
        if video_id not in available
    )
    subsets = tuple(table[ids[index]] for index in chosen)
    return SplitVideos(split_name, take_records(clips.records, chosen), subsets, missing)


def _split_table(clips: Clips, name: str | None) -> tuple[str, Mapping[str, str]]:
    """Return the split's name and {video_id: subset}."""
    if name is not None and name.endswith(".csv"):
        return Path(name).stem, read_split(Path(name))
    if name is None and ("1" in clips.splits or len(clips.splits) == 1):
        name = "1" if "1" in clips.splits else next(iter(clips.splits))
    if name is None or name not in clips.splits:
        available = ", ".join(clips.splits) or "none; give a CSV file with columns video_id,split"
        raise ValueError(f"{f'there is no split {name!r}' if name else 'give a split'}; the clips have: {available}")
    return name, clips.splits[name]
