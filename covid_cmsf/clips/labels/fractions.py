"""Few labels: which images of the training part are labeled, as a list of names (the official format) or by a seed."""

# N images

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.clips.labels.names import file_name, have_own_file_names, name_of
from covid_cmsf.clips.labels.noise import Labels
from covid_cmsf.clips.manifest import ClipRecord

logger = logging.getLogger(__name__)


def known_share(labels: Labels, *, share: float, seed: int) -> Labels:
    """The labels (N,) of a `share` of each class, at least one, the same for a seed; -1 for the others."""
    seen = np.full_like(labels, -1)
    rng = np.random.default_rng([seed, 0])
    for label in sorted(set(labels.tolist()) - {-1}):
        members = rng.permutation(np.flatnonzero(labels == label))
        kept = members[: max(1, round(share * len(members)))]
        seen[kept] = label
    return seen


def write_known_list(path: Path, records: Sequence[ClipRecord], labels: Labels) -> None:
    """One name a line of those whose label is known; without folders where file names are unique, as officially."""
    called = file_name if have_own_file_names(records) else name_of
    lines = sorted(called(record) for record, label in zip(records, labels, strict=True) if label >= 0)
    write_text_atomic(path, "".join(f"{line}\n" for line in lines))


def known_by_list(records: Sequence[ClipRecord], labels: Labels, path: Path) -> Labels:
    """The labels (N,) of the images that the list names, by path or by file name; -1 for the others."""
    if not path.is_file():
        raise FileNotFoundError(f"no list of labeled images {path}; `covid-cmsf labels fraction` writes one")
    listed = {line.strip() for line in path.read_text(encoding="utf-8", errors="surrogateescape").split("\n")} - {""}
    by_file_name = have_own_file_names(records)
    found = [name_of(one) in listed or (by_file_name and file_name(one) in listed) for one in records]
    if not any(found):
        raise ValueError(f"none of the {len(listed)} names of {path} is in the training part: another set of images?")
    if sum(found) < len(listed):
        logger.warning(
            "%s: %d of its %d names are not in the training part", path, len(listed) - sum(found), len(listed)
        )
    return np.where(np.array(found), labels, -1)
