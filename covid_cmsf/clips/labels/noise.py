"""Wrong labels: a share of them, replaced by other classes, the same for the same seed.

The paper's own files are lost and no generator was published, so these are our rules: exactly the asked share is
changed (of each class when stratified), a changed label is never the true one, all other classes are equally likely,
and what is wrong at a low rate is equally wrong at every higher rate of the same seed.
"""

# N images

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.clips.labels.names import name_of
from covid_cmsf.clips.manifest import ClipRecord

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class NoisyFile:
    """What a label file holds: the label of every name, in the file's order, and its hash."""

    labels: Mapping[str, int]
    sha256: str


def noisy_labels(records: Sequence[ClipRecord], *, rate: float, seed: int, stratified: bool = True) -> Labels:
    """(N,) labels of these records, a share `rate` of them wrong; unlabeled ones (-1) stay so.

    The draws follow from the sorted names, so the order of the records does not matter.
    """
    if not 0 <= rate < 1:
        raise ValueError(f"noise {rate}: a share from 0 to below 1 is needed")
    order = sorted(range(len(records)), key=lambda i: name_of(records[i]))
    true = np.array([records[i].label for i in order], dtype=np.int64)
    labels = np.empty_like(true)
    labels[np.array(order, dtype=np.int64)] = corrupted(true, rate=rate, seed=seed, stratified=stratified)
    return labels


def corrupted(true: Labels, *, rate: float, seed: int, stratified: bool) -> Labels:
    """The same labels (N,), some of them wrong."""
    num_classes = int(true.max(initial=-1)) + 1
    if rate and num_classes < 2:
        raise ValueError("noise needs at least two classes")
    rng = np.random.default_rng([seed, 1])
    others = rng.integers(1, max(num_classes, 2), size=len(true))  # how far along the circle of classes
    wrong = np.where(true >= 0, (true + others) % max(num_classes, 1), -1)
    groups = [np.flatnonzero(true == one) for one in range(num_classes)] if stratified else [np.flatnonzero(true >= 0)]
    labels = true.copy()
    for members in groups:
        chosen = rng.permutation(members)[: round(rate * len(members))]
        labels[chosen] = wrong[chosen]
    return labels


def write_noisy_file(path: Path, records: Sequence[ClipRecord], labels: Labels, **facts: object) -> str:
    """Writes `<name> <label>` a line, the official format, and beside it `<path>.json`: true labels, `facts`, hash.

    Returns the SHA-256 of the file.
    """
    order = sorted(range(len(records)), key=lambda i: name_of(records[i]))
    broken = next((name_of(record) for record in records if "\n" in name_of(record)), None)
    if broken is not None:
        raise ValueError(f"a name with a line break cannot stand in a list: {broken!r}")
    text = "".join(f"{name_of(records[i])} {labels[i]}\n" for i in order)
    digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
    true = [records[i].label for i in order]
    changed = sum(int(labels[i]) != records[i].label for i in order)
    about = {"sha256": digest, "num_images": len(order), "num_changed": changed, **facts, "true_labels": true}
    write_text_atomic(path, text)
    write_text_atomic(_about(path), json.dumps(about) + "\n")
    return digest


def read_noisy_file(path: Path) -> NoisyFile:
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
    if _about(path).is_file() and json.loads(_about(path).read_text(encoding="utf-8")).get("sha256") != digest:
        raise ValueError(f"{path} is not the file that {_about(path).name} describes: its hash is another")
    if not labels:
        raise ValueError(f"{path} has no lines")
    return NoisyFile(labels, digest)


def _about(path: Path) -> Path:
    return path.with_name(path.name + ".json")
