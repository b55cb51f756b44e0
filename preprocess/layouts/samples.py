"""Videos that come with values of their own, one by one: WebDataset's samples, rows of Hugging Face metadata."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from covid_cmsf.clips.names import invalid_id_reason
from preprocess.archives import Member
from preprocess.layouts.collection import Collection, Video, make_labels, make_video_ids
from preprocess.layouts.folders import OWN_SOURCE_WARNING, source_name, split_by_source

KEYS = ("id", "label", "source", "subset")
SUBSETS = ("train", "test", "val")


@dataclass(frozen=True)
class Sample:
    """A video, the name that it has in its collection, and what is said about it."""

    path: Path
    name: PurePosixPath
    values: Mapping[str, str]  # of KEYS, not empty
    number: int | None = None  # of the class
    member: Member | None = None  # of the archive at `path`

    def describe(self) -> str:
        """Return the path, and the member of an archive."""
        return str(self.path) if self.member is None else f"{self.path}: {self.member.name}"


def parse_values(values: Mapping[str, Any], origin: object) -> dict[str, str]:
    """Return the texts of KEYS that are not empty, without other keys; ValueError for one that can't be used."""
    found = {}
    for key in KEYS:
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, str | int | float | None):
            raise ValueError(f"{origin}: {key} is {value!r}, neither text nor a number")
        if value is not None and str(value).strip():
            found[key] = str(value).strip()
    if found.get("subset", SUBSETS[0]) not in SUBSETS:
        raise ValueError(f"{origin}: subset is {found['subset']!r}; expected one of {', '.join(SUBSETS)}")
    if "id" in found and (reason := invalid_id_reason(found["id"])) is not None:
        raise ValueError(f"{origin}: id {found['id']!r} is no relative path: {reason}")
    return found


def class_number(text: str) -> int | None:
    """Return the number that a text is; None for a name, and for more digits than any class has."""
    return int(text) if text.isdecimal() and len(text) < 10 else None


def make_collection(
    root: Path,
    samples: Sequence[Sample],
    *,
    test_fraction: float | None,
    seed: int,
    source_pattern: str | None,
    folders_are_classes: bool = True,
) -> Collection:
    """Return the collection. Subsets are those that the samples name, else drawn by source, else all train.

    With `folders_are_classes` the folders name the classes, if no sample does.
    """
    subsets = [sample.values.get("subset", "") for sample in samples]
    if any(subsets) and test_fraction is not None:
        raise ValueError(f"{root} has subsets of its own; leave --test-fraction out")
    if any(subsets) and not all(subsets):
        raise ValueError(f"{samples[subsets.index('')].describe()} has no subset, but others of {root} have one")
    has_sources = any("source" in sample.values for sample in samples)
    if source_pattern is not None and has_sources:
        raise ValueError(f"{root} has sources of its own; leave --source-pattern out")
    classes, ids = _class_names(samples, folders_are_classes=folders_are_classes), _video_ids(samples)
    labels = _number_classes(root, samples, classes)
    videos = []
    for sample, class_name, video_id in zip(samples, classes, ids, strict=True):
        source = sample.values.get("source") or source_name(Path(sample.name), video_id, source_pattern)
        label = labels.get(class_name, -1)
        videos.append(Video(sample.path, video_id, source, class_name, label, member=sample.member))
    split = {video_id: subset or "train" for video_id, subset in zip(ids, subsets, strict=True)}
    warnings = []
    if test_fraction is not None:
        split = split_by_source(videos, test_fraction, seed)
        warnings = [] if has_sources or source_pattern is not None or not test_fraction else [OWN_SOURCE_WARNING]
    return Collection(sorted(videos, key=lambda video: video.video_id), {"1": split}, warnings)


def _class_names(samples: Sequence[Sample], *, folders_are_classes: bool) -> list[str]:
    """Return each sample's class: label or number; if none has one, the first folder that not all have in common."""
    names = [sample.values.get("label") or ("" if sample.number is None else str(sample.number)) for sample in samples]
    if any(names) or not folders_are_classes:
        return names
    folders = [sample.name.parts[:-1] for sample in samples]
    common = 0
    while all(len(one) > common and one[common] == folders[0][common] for one in folders):
        common += 1
    return ["".join(parts[common:][:1]) for parts in folders]


def _number_classes(root: Path, samples: Sequence[Sample], classes: Sequence[str]) -> dict[str, int]:
    """Return {class: label} in the order of the classes' own numbers, if all have one, else by name."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for sample, class_name in zip(samples, classes, strict=True):
        number = class_number(class_name) if sample.number is None else sample.number
        if class_name:
            numbers[class_name] |= set() if number is None else {number}
    owner: dict[int, str] = {}
    for class_name, found in numbers.items():
        if len(found) > 1:
            raise ValueError(f"{root}: class {class_name!r} has several numbers: {', '.join(map(str, sorted(found)))}")
        for number in found:
            if owner.setdefault(number, class_name) != class_name:
                raise ValueError(f"{root}: the number {number} means both class {owner[number]!r} and {class_name!r}")
    return make_labels([owner[number] for number in sorted(owner)] if all(numbers.values()) else sorted(numbers))


def _video_ids(samples: Sequence[Sample]) -> list[str]:
    """Return the id of each sample: its own, else its name without ending; ValueError if two are equal."""
    names = [Path(sample.name) for sample in samples]
    from_name = make_video_ids(sorted(set(names)))
    ids = [sample.values.get("id", from_name[name]) for sample, name in zip(samples, names, strict=True)]
    first: dict[str, Sample] = {}
    for video_id, sample in zip(ids, samples, strict=True):
        if (other := first.setdefault(video_id, sample)) is not sample:
            if sample.describe() == other.describe():
                raise ValueError(f"{sample.describe()} is listed twice, with the id {video_id!r}")
            raise ValueError(f"{sample.describe()} and {other.describe()} would both have the id {video_id!r}")
    return ids
