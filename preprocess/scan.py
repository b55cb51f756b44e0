"""Finding the video files below a folder."""

import os
from collections.abc import Iterator
from pathlib import Path

EXTENSIONS = frozenset(
    f".{ending}" for ending in "3gp asf avi flv m2ts m4v mkv mov mp4 mpeg mpg mts ogv ts vob webm wmv y4m".split()
)


def find_videos(root: Path) -> list[Path]:
    """Paths of the video files below `root`, relative to it, sorted; links to folders are followed, loops are not."""
    if not root.is_dir():
        raise FileNotFoundError(f"no folder of videos at {root}")
    found = sorted(_walk(root, root.stat(), set()))
    if not found:
        raise ValueError(f"no video files below {root} (looked for {' '.join(sorted(EXTENSIONS))})")
    return [path.relative_to(root) for path in found]


def _walk(folder: Path, status: os.stat_result, seen: set[tuple[int, int]]) -> Iterator[Path]:
    identity = (status.st_dev, status.st_ino)
    if identity in seen:
        return
    seen.add(identity)
    with os.scandir(folder) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                yield from _walk(Path(entry.path), entry.stat(), seen)
            elif Path(entry.name).suffix.lower() in EXTENSIONS:
                yield Path(entry.path)


def video_ids(paths: list[Path]) -> dict[Path, str]:
    """{relative path: video id}: the path without its ending, with it where two files differ only there."""
    stems = [path.with_suffix("").as_posix() for path in paths]
    counts: dict[str, int] = {}
    for stem in stems:
        counts[stem] = counts.get(stem, 0) + 1
    ids = {path: stem if counts[stem] == 1 else path.as_posix() for path, stem in zip(paths, stems, strict=True)}
    taken: dict[str, Path] = {}
    for path, video_id in ids.items():
        if taken.setdefault(video_id, path) != path:
            raise ValueError(f"{path} and {taken[video_id]} would both be called {video_id!r}; rename one of them")
    return ids
