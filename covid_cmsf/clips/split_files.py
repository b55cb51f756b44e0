"""Split files of other projects, for formats that have no splits of their own (CoCLR's LMDBs, folders of JPEG frames).

A path is a file or a folder of files, of any of these kinds:

    1.csv                                          ours: columns video_id and split (train, val, test)
    trainlist01.txt, testlist01.txt                UCF-101's lists: `Class/video.avi`, perhaps with a label
    train_split01.csv, test_split01.csv            CoCLR's: a folder of frames and their number, without a header
    ucf101_train_split_1_rawframes.txt, ...        mmaction's: folder, number of frames, label
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from covid_cmsf.clips.records import raise_conflict, read_split

logger = logging.getLogger(__name__)
Splits = dict[str, dict[str, str]]  # {name of the split: {video id: subset}}
LIST_NAME = re.compile(r"(?:^|_)(?P<subset>train|val|test)_?(?:list|split)_?(?P<number>\d+)")
OUR_HEADER = re.compile(r'^"?video_id"?,"?split"?\s*$')


def read_split_files(path: Path, video_ids: Iterable[str]) -> Splits:
    """Return the splits in a file or folder, for these videos; ValueError if none is listed, or one in two subsets.

    Our own file is named by its stem (`1.csv` is split "1"), a list by its number. Listed videos that the clips do not
    have are counted in a warning.
    """
    if not path.exists():
        raise FileNotFoundError(f"no split file or folder {path}")
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    known = _by_listed_name(video_ids)
    splits: Splits = {}
    num_listed = num_missing = 0
    for file in files:
        for name, listed, subset in _read_file(file):
            num_listed += 1
            if (video_id := _find(listed, known)) is None:
                num_missing += 1
            else:
                known_subset = splits.setdefault(name, {}).setdefault(video_id, subset)
                raise_conflict([(video_id, known_subset, subset)], f"{path}, split {name}")
    if not num_listed:
        raise ValueError(
            f"{path} has no split: expected columns video_id and split, or lists named trainlist01.txt, "
            "train_split01.csv or ..._train_split_1_....txt"
        )
    if not splits:
        raise ValueError(
            f"none of the {num_listed} videos listed in {path} is among the clips; is it another data set?"
        )
    if num_missing:
        logger.warning("%d of the %d videos listed in %s are not among the clips", num_missing, num_listed, path)
    return splits


def _read_file(path: Path) -> Iterable[tuple[str, str, str]]:
    """Yield (name of the split, video as listed, subset) of one file; nothing if it is no split file."""
    if path.suffix not in (".csv", ".txt") or not path.is_file():
        return
    with path.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        lines = [line.strip() for line in file if line.strip()]
    if lines and OUR_HEADER.match(lines[0]):
        yield from ((path.stem, video_id, subset) for video_id, subset in read_split(path).items())
    elif match := LIST_NAME.search(path.stem):
        name = str(int(match["number"]))
        for line in lines:
            yield name, re.split(r",|\s", line, maxsplit=1)[0], match["subset"]


def _by_listed_name(video_ids: Iterable[str]) -> dict[str, str]:
    """Return {a name that a list may use: video id}: the id, and its last folder and name if unique."""
    ids = list(video_ids)
    short_names = ["/".join(video_id.split("/")[-2:]) for video_id in ids]
    counts = Counter(short_names)
    known = {name: video_id for name, video_id in zip(short_names, ids, strict=True) if counts[name] == 1}
    return known | {video_id: video_id for video_id in ids}


def _find(listed: str, known: dict[str, str]) -> str | None:
    """Return the video of a listed name, which may have a suffix (`.avi`) or be a path on another machine."""
    parts = PurePosixPath(listed).parts
    short = "/".join(parts[-2:])
    candidates = (listed, short, PurePosixPath(short).with_suffix("").as_posix() if parts else "")
    return next((known[name] for name in candidates if name in known), None)
