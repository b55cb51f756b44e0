"""Find the same video file (`source_sha256`), or overlapping cuts of one, in two classes or two subsets of a split."""

from collections.abc import Iterator, Mapping, Sequence

from covid_cmsf.clips.cuts import cut_times, group_overlapping
from covid_cmsf.clips.records import ClipRecord


def find_duplicates(records: Sequence[ClipRecord], splits: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yield one sentence per file that has two classes, or that is in two subsets of a split.

    Both make a measurement wrong: one of the labels must be, and a network is tested on what it was trained on. Cuts of
    a file count as the same if they have frames in common.
    """
    by_hash: dict[str, list[ClipRecord]] = {}
    for record in records:
        if record.source_sha256:
            by_hash.setdefault(record.source_sha256, []).append(record)
    for same in by_hash.values():
        if len(same) < 2:
            continue
        for group in group_overlapping(same):
            classes = sorted({record.class_name for record in group})
            if len(classes) > 1:
                yield f"{_name_same(group)}, in the classes {_join(map(repr, classes))}"
        for split, subset_of in splits.items():
            for group in group_overlapping([record for record in same if record.video_id in subset_of]):
                subsets = sorted({subset_of[record.video_id] for record in group})
                if len(subsets) > 1:
                    yield f"{_name_same(group)}, in the subsets {_join(subsets)} of split {split}"


def _name_same(group: Sequence[ClipRecord]) -> str:
    names = _join(repr(record.video_id) for record in group)
    is_same = len({cut_times(record) for record in group}) == 1
    return f"{names} are the same file" if is_same else f"{names} are overlapping cuts of the same file"


def _join(names: Iterator[str] | Sequence[str], most: int = 3) -> str:
    """Return "a, b and 3 more"."""
    listed = list(names)
    shown = listed[:most]
    if len(listed) > most:
        return f"{', '.join(shown)} and {len(listed) - most} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]]) if len(shown) > 1 else "".join(shown)
