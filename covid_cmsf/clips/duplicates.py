"""Find the same video file (`source_sha256`) in two classes, or in two subsets of a split."""

from collections.abc import Iterator, Mapping, Sequence

from covid_cmsf.clips.records import ClipRecord


def find_duplicates(records: Sequence[ClipRecord], splits: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield one sentence per file that has two classes, or that is in two subsets of a split.

    Both make a measurement wrong: one of the labels must be, and a network is tested on what it was trained on.
    """
    by_hash: dict[str, list[ClipRecord]] = {}
    for record in records:
        if record.source_sha256:
            by_hash.setdefault(record.source_sha256, []).append(record)
    for same in by_hash.values():
        if len(same) < 2:
            continue
        names = _join(repr(record.video_id) for record in same)
        classes = sorted({record.class_name for record in same})
        if len(classes) > 1:
            yield f"{names} are the same file, in the classes {_join(map(repr, classes))}"
        for split, subset_of in splits.items():
            subsets = sorted({subset_of[record.video_id] for record in same if record.video_id in subset_of})
            if len(subsets) > 1:
                yield f"{names} are the same file, in the subsets {_join(subsets)} of split {split}"


def _join(names: Iterator[str] | Sequence[str], most: int = 3) -> str:
    """Return "a, b and 3 more"."""
    listed = list(names)
    shown = listed[:most]
    if len(listed) > most:
        return f"{', '.join(shown)} and {len(listed) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
