"""What every layout produces."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Video:
    """One video file of a collection."""

    path: Path
    video_id: str  # "<Class>/<video>"; unique in the collection
    source: str  # footage that sibling clips share
    class_name: str = ""
    label: int = -1


@dataclass(frozen=True)
class Collection:
    """Videos in a fixed order, the splits {name: {video_id: train|test|val}}, and what the user should know."""

    videos: list[Video]
    splits: dict[str, dict[str, str]]
    remarks: list[str] = field(default_factory=list)


def labels_of(class_names: list[str]) -> dict[str, int]:
    """{class: 0-based label} in the given order; a name that stands twice is an error."""
    if len(set(class_names)) != len(class_names):
        twice = next(name for name in class_names if class_names.count(name) > 1)
        raise ValueError(f"class {twice!r} stands twice in the class list")
    return {name: label for label, name in enumerate(class_names)}


def text_lines(path: Path) -> list[str]:
    """The lines that are not empty, without line ends of any system; odd bytes in names survive."""
    text = path.read_bytes().decode("utf-8-sig", "surrogateescape")
    return [line.strip("\r") for line in text.split("\n") if line.strip()]


def missing_remark(listed: int, missing: int, where: str) -> list[str]:
    """A remark when lists name videos that are not on disk."""
    return [f"{missing} of the {listed} videos listed in {where} are not on disk"] if missing else []


def shard_of(videos: list[Video], shard: str | None) -> list[Video]:
    """Every n-th video from the i-th on, for `i/n` with i from 1 to n; all of them for None."""
    if shard is None:
        return videos
    left, slash, right = shard.partition("/")
    if not slash or not left.isdigit() or not right.isdigit() or not 1 <= int(left) <= int(right):
        raise ValueError(f"--shard {shard!r} is not of the form i/n with 1 <= i <= n, for example 2/8")
    return videos[int(left) - 1 :: int(right)]
