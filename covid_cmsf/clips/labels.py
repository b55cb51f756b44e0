"""What label files call an image or video."""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.records import ClipRecord
from covid_cmsf.files import write_text_atomic

TRAIN_PREFIX = "train/"


def sample_name(record: ClipRecord) -> str:
    """Of an image its path below `train`, as in the official lists; of a video its id."""
    return record.video_id.removeprefix(TRAIN_PREFIX)


def file_name(record: ClipRecord) -> str:
    """The last part of the path: the official lists of labeled ImageNet files have no folders."""
    return PurePosixPath(record.video_id).name


def has_unique_file_names(records: Sequence[ClipRecord]) -> bool:
    """Whether file names alone tell these apart."""
    return max(Counter(map(file_name, records)).values(), default=0) <= 1


# Wrong labels: a share of them, replaced by other classes, the same for the same seed.
#
# The paper's own files are lost and no generator was published, so these are our rules: exactly the asked share is
# changed (of each class when stratified), a changed label is never the true one, all other classes are equally likely,
# and what is wrong at a low rate is equally wrong at every higher rate of the same seed.

# N images


Labels = NDArray[np.int64]


@dataclass(frozen=True)
class NoisyLabels:
    """What a label file holds: the label of every name, in the file's order, and its hash."""

    labels: Mapping[str, int]
    sha256: str


def noisy_labels(records: Sequence[ClipRecord], *, rate: float, seed: int, stratified: bool = True) -> Labels:
    """(N,) labels of these records, a share `rate` of them wrong; unlabeled ones (-1) stay so.

    The draws follow from the sorted names, so the order of the records does not matter.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"noise {rate}: a share from 0 to below 1 is needed")
    order = sorted(range(len(records)), key=lambda i: sample_name(records[i]))
    true_labels = np.array([records[i].label for i in order], dtype=np.int64)
    labels = np.empty_like(true_labels)
    labels[np.array(order, dtype=np.int64)] = corrupt_labels(true_labels, rate=rate, seed=seed, stratified=stratified)
    return labels


def corrupt_labels(true_labels: Labels, *, rate: float, seed: int, stratified: bool) -> Labels:
    """The same labels (N,), some of them wrong."""
    num_classes = int(true_labels.max(initial=-1)) + 1
    if rate and num_classes < 2:
        raise ValueError("noise needs at least two classes")
    rng = np.random.default_rng([seed, 1])
    offsets = rng.integers(1, max(num_classes, 2), size=len(true_labels))  # how far along the circle of classes
    wrong = np.where(true_labels >= 0, (true_labels + offsets) % max(num_classes, 1), -1)
    groups = (
        [np.flatnonzero(true_labels == one) for one in range(num_classes)]
        if stratified
        else [np.flatnonzero(true_labels >= 0)]
    )
    labels = true_labels.copy()
    for members in groups:
        chosen = rng.permutation(members)[: round(rate * len(members))]
        labels[chosen] = wrong[chosen]
    return labels


def write_noisy_labels(path: Path, records: Sequence[ClipRecord], labels: Labels, **metadata: object) -> str:
    """Writes `<name> <label>` a line, the official format, and beside it `<path>.json`: true labels, `metadata`, hash.

    Returns the SHA-256 of the file.
    """
    order = sorted(range(len(records)), key=lambda i: sample_name(records[i]))
    invalid = next((sample_name(record) for record in records if "\n" in sample_name(record)), None)
    if invalid is not None:
        raise ValueError(f"a name with a line break cannot stand in a list: {invalid!r}")
    text = "".join(f"{sample_name(records[i])} {labels[i]}\n" for i in order)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    true_labels = [records[i].label for i in order]
    changed = sum(int(labels[i]) != records[i].label for i in order)
    metadata_to_write = {
        "sha256": digest,
        "num_images": len(order),
        "num_changed": changed,
        **metadata,
        "true_labels": true_labels,
    }
    write_text_atomic(path, text)
    write_text_atomic(_metadata_path(path), json.dumps(metadata_to_write) + "\n")
    return digest


def read_noisy_labels(path: Path) -> NoisyLabels:
    """The labels by name. ValueError names the line that is wrong, or says that the file is not what was written."""
    if not path.is_file():
        raise FileNotFoundError(f"no label file {path}; `covid-cmsf labels noise` writes one")
    data = path.read_bytes()
    labels: dict[str, int] = {}
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").split("\n"), start=1):
        if not line.strip():
            continue
        name, _, label = line.rstrip("\r").rpartition(" ")
        try:
            labels[name] = int(label)
        except ValueError:
            raise ValueError(f"{path}, line {number}: expected a name, a space and a label, not {line!r}") from None
        if not name or labels[name] < 0:
            raise ValueError(f"{path}, line {number}: expected a name, a space and a label, not {line!r}")
    digest = hashlib.sha256(data).hexdigest()
    if (
        _metadata_path(path).is_file()
        and json.loads(_metadata_path(path).read_text(encoding="utf-8")).get("sha256") != digest
    ):
        raise ValueError(f"{path} is not the file that {_metadata_path(path).name} describes: its hash is another")
    if not labels:
        raise ValueError(f"{path} has no lines")
    return NoisyLabels(labels, digest)


def _metadata_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


# Few labels: which images of the training subset are labeled, as a list of names (the official format) or by a seed.

# N images


logger = logging.getLogger(__name__)


def sample_labeled_fraction(labels: Labels, *, fraction: float, seed: int) -> Labels:
    """The labels (N,) of a `fraction` of each class, at least one, the same for a seed; -1 for the others."""
    kept_labels = np.full_like(labels, -1)
    rng = np.random.default_rng([seed, 0])
    for label in sorted(set(labels.tolist()) - {-1}):
        members = rng.permutation(np.flatnonzero(labels == label))
        kept = members[: max(1, round(fraction * len(members)))]
        kept_labels[kept] = label
    return kept_labels


def write_labeled_list(path: Path, records: Sequence[ClipRecord], labels: Labels) -> None:
    """One name a line of those whose label is known; without folders where file names are unique, as officially."""
    get_name = file_name if has_unique_file_names(records) else sample_name
    lines = sorted(get_name(record) for record, label in zip(records, labels, strict=True) if label >= 0)
    write_text_atomic(path, "".join(f"{line}\n" for line in lines))


def labels_from_list(records: Sequence[ClipRecord], labels: Labels, path: Path) -> Labels:
    """The labels (N,) of the images that the list names, by path or by file name; -1 for the others."""
    if not path.is_file():
        raise FileNotFoundError(f"no list of labeled images {path}; `covid-cmsf labels fraction` writes one")
    listed = {line.strip() for line in path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")} - {""}
    by_file_name = has_unique_file_names(records)
    is_listed = [sample_name(one) in listed or (by_file_name and file_name(one) in listed) for one in records]
    if not any(is_listed):
        raise ValueError(f"none of the {len(listed)} names of {path} is in the training subset: another set of images?")
    if sum(is_listed) < len(listed):
        logger.warning(
            "%s: %d of its %d names are not in the training subset", path, len(listed) - sum(is_listed), len(listed)
        )
    return np.where(np.array(is_listed), labels, -1)
