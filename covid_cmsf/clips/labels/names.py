"""What label files call an image or video."""

from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from covid_cmsf.clips.manifest import ClipRecord

TRAIN = "train/"


def name_of(record: ClipRecord) -> str:
    """Of an image its path below `train`, as in the official lists; of a video its id."""
    return record.video_id.removeprefix(TRAIN)


def file_name(record: ClipRecord) -> str:
    """The last part of the path: the official lists of labeled ImageNet files have no folders."""
    return PurePosixPath(record.video_id).name


def have_own_file_names(records: Sequence[ClipRecord]) -> bool:
    """Whether file names alone tell these apart."""
    return max(Counter(map(file_name, records)).values(), default=0) <= 1
