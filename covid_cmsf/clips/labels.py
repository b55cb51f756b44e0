"""Label files: noisy labels, and lists of the labeled samples of a semi-supervised split.

Noisy labels: the paper's own files are lost and no generator was published, so these are our rules. Exactly the given
fraction is changed (of each class when stratified), a changed label is never the true one, all other classes are
equally likely, and what is wrong at a low rate is equally wrong at every higher rate of the same seed.
Shapes: N samples.
"""

import hashlib
import json
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.records import ClipRecord, get_column
from covid_cmsf.files import read_json, write_text_atomic

logger = logging.getLogger(__name__)
Labels = NDArray[np.int64]
TRAIN_PREFIX = "train/"


def sample_name(record: ClipRecord) -> str:
    """Return an image's path below `train`, as in the official lists, or a video's id."""
    return record.video_id.removeprefix(TRAIN_PREFIX)


def file_name(record: ClipRecord) -> str:
    """Return the name without folders, as in the official lists of labeled ImageNet files."""
    return PurePosixPath(record.video_id).name


def has_unique_file_names(records: Sequence[ClipRecord]) -> bool:
    """Return whether no two records have the same file name."""
    return max(Counter(map(file_name, records)).values(), default=0) <= 1


@dataclass(frozen=True)
class NoisyLabels:
    """The content of a label file: {sample name: label} in the file's order, and the file's hash."""

    labels: Mapping[str, int]
    sha256: str


def noisy_labels(records: Sequence[ClipRecord], *, rate: float, seed: int, stratified: bool = True) -> Labels:
    """Return the labels (N,) of the records, a fraction `rate` of them wrong; unlabeled samples keep -1.

    Samples are drawn in the order of their sorted names, so the order of the records does not matter.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"noise rate {rate}: it must be at least 0 and below 1")
    order = _order_by_name(records)
    true_labels = np.array(get_column(records, "label"), dtype=np.int64)[order]
    labels = np.empty_like(true_labels)
    labels[order] = corrupt_labels(true_labels, rate=rate, seed=seed, stratified=stratified)
    return labels


def _order_by_name(records: Sequence[ClipRecord]) -> NDArray[np.int64]:
    names = [video_id.removeprefix(TRAIN_PREFIX) for video_id in get_column(records, "video_id")]
    return np.array(sorted(range(len(names)), key=names.__getitem__), dtype=np.int64)


def corrupt_labels(true_labels: Labels, *, rate: float, seed: int, stratified: bool) -> Labels:
    """Return the labels (N,) with a fraction `rate` of them replaced by other classes."""
    num_classes = int(true_labels.max(initial=-1)) + 1
    if rate and num_classes < 2:
        raise ValueError(f"noise needs at least two classes, not {num_classes}")
    rng = np.random.default_rng([seed, 1])
    offsets = rng.integers(1, max(num_classes, 2), size=len(true_labels))  # added to the label, modulo num_classes
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
    """Write lines `<name> <label>`, the official format, and `<path>.json` with true labels, `metadata` and hash.

    Return the SHA-256 of the label file.
    """
    order = _order_by_name(records).tolist()
    invalid = next((sample_name(record) for record in records if "\n" in sample_name(record)), None)
    if invalid is not None:
        raise ValueError(f"a label file has one name per line; this name has a line break: {invalid!r}")
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
    """Read a label file; ValueError if a line is malformed, or if the file's hash differs from its `.json`."""
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
    if (metadata_path := _metadata_path(path)).is_file():
        metadata = read_json(metadata_path)
        if not isinstance(metadata, dict) or metadata.get("sha256") != digest:
            raise ValueError(f"{path} was changed: its hash is not that in {metadata_path.name}")
    if not labels:
        raise ValueError(f"{path} has no lines")
    return NoisyLabels(labels, digest)


def _metadata_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


# Semi-supervised learning: which training samples are labeled.


def sample_labeled_fraction(labels: Labels, *, fraction: float, seed: int) -> Labels:
    """Keep the labels (N,) of a random `fraction` of each class, at least one sample; set the others to -1."""
    kept_labels = np.full_like(labels, -1)
    rng = np.random.default_rng([seed, 0])
    for label in sorted(set(labels.tolist()) - {-1}):
        members = rng.permutation(np.flatnonzero(labels == label))
        kept = members[: max(1, round(fraction * len(members)))]
        kept_labels[kept] = label
    return kept_labels


def write_labeled_list(path: Path, records: Sequence[ClipRecord], labels: Labels) -> None:
    """Write the names of the samples with a label >= 0, one per line.

    Names are without folders if file names are unique, as in the official lists.
    """
    get_name = file_name if has_unique_file_names(records) else sample_name
    lines = sorted(get_name(record) for record, label in zip(records, labels, strict=True) if label >= 0)
    write_text_atomic(path, "".join(f"{line}\n" for line in lines))


def labels_from_list(records: Sequence[ClipRecord], labels: Labels, path: Path) -> Labels:
    """Keep the labels (N,) of the samples in a list of names (paths or file names); set the others to -1."""
    if not path.is_file():
        raise FileNotFoundError(f"no list of labeled samples {path}; `covid-cmsf labels fraction` writes one")
    listed = {line.strip() for line in path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")} - {""}
    by_file_name = has_unique_file_names(records)
    is_listed = [sample_name(one) in listed or (by_file_name and file_name(one) in listed) for one in records]
    if not any(is_listed):
        raise ValueError(f"none of the {len(listed)} names in {path} is in the training subset: another data set?")
    if sum(is_listed) < len(listed):
        logger.warning(
            "%s: %d of its %d names are not in the training subset", path, len(listed) - sum(is_listed), len(listed)
        )
    return np.where(np.array(is_listed), labels, -1)
