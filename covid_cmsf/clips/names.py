"""Names of videos, classes and sources that come from files: validate them where they are read, escape them once.

A video id becomes a path below the store, so one that leads elsewhere (`../x`, `/etc/x`) must never be used. Every
table (manifest, split, failures), the ledger and the index of an LMDB pass through `check_video_ids`.
"""

import re
from collections.abc import Sequence

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # Unicode's category Cc
ESCAPED = re.compile(r"[\x00-\x1f\x7f-\x9f\\]")
UCF_NAME = re.compile(r"v_.+_g\d+_c\d+$")
RULE = "a video id is a relative path with / between its folders, without '..', '\\' and control characters"


def invalid_id_reason(video_id: str) -> str | None:
    """Return why a string can't be a video id; None if it can."""
    if not video_id:
        return "it is empty"
    if CONTROL.search(video_id):
        return "it has a control character"
    if "\\" in video_id:
        return "it has a backslash"
    if video_id.startswith("/"):
        return "it is an absolute path"
    invalid = [part for part in video_id.split("/") if part in ("", ".", "..")]
    return f"a part of it is {invalid[0]!r}" if invalid else None


def check_video_ids(video_ids: Sequence[str], origin: object) -> None:
    """Raise ValueError with the first string that can't be a video id; `origin` says where they were read."""
    if are_valid("/".join(["", *video_ids, ""])):
        return
    for number, video_id in enumerate(video_ids):
        if (reason := invalid_id_reason(video_id)) is not None:
            raise ValueError(f"{origin}: entry {number + 1} is {video_id!r}: {reason}; {RULE}")


def check_texts(texts: Sequence[str], origin: object) -> None:
    """Raise ValueError for a class name or source with a control character."""
    if "".join(texts).isprintable():
        return
    for text in texts:
        if CONTROL.search(text):
            raise ValueError(f"{origin}: {text!r} has a control character, which no class name or source may have")


def guess_source(video_id: str) -> str:
    """Return the source of a video in a format without one: the group for UCF-101's names, else the video itself."""
    video = video_id.rsplit("/", 1)[-1]
    return video.rsplit("_", 1)[0] if UCF_NAME.match(video) else video_id


def escape_name(name: str) -> str:
    """Replace control characters and backslashes by %0A, %5C, ...: what a file's name may have but an id may not."""
    return ESCAPED.sub(lambda match: f"%{ord(match[0]):02X}", name)


def are_valid(joined: str) -> bool:
    """Check all ids at once, which is many times faster than one by one; they have a / between, before and after."""
    return are_valid_paths(joined) and (joined.isprintable() or CONTROL.search(joined) is None)


def are_valid_paths(joined: str) -> bool:
    """Check ids, joined as for `are_valid`, of which it is known that they have no control characters."""
    return not any(part in joined for part in ("\\", "//", "/./", "/../"))  # an empty id, and / at an end, give //
