"""Videos in tar or zip archives: WebDataset's shards, or a folder of videos that was packed.

A sample is a video and the files beside it that have its name: `a/0001.mp4` with `a/0001.json` (the keys `id`, `label`,
`source` and `subset`, all optional; others are ignored) and `a/0001.cls` (the number of the class, or its name). If no
sample has a label, the folders are the classes, if they differ.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from preprocess.archives import ENDINGS, Member, is_archive, list_members, read_member
from preprocess.layouts.collection import EXTENSIONS, Collection, find_files
from preprocess.layouts.samples import Sample, class_number, make_collection, parse_values

SAMPLE_KEY = re.compile(r"((?:.*/)?[^./][^./]*)\.[^/]*$")  # as in WebDataset: up to the first dot of the file's name


def scan_archives(root: Path, *, test_fraction: float | None, seed: int, source_pattern: str | None) -> Collection:
    """Scan an archive, or all archives below a folder."""
    samples = [sample for path in _find_archives(root) for sample in _read_samples(path)]
    if not samples:
        raise ValueError(f"no video files in {root} (looked for {' '.join(sorted(EXTENSIONS))})")
    return make_collection(root, samples, test_fraction=test_fraction, seed=seed, source_pattern=source_pattern)


def _find_archives(root: Path) -> list[Path]:
    if is_archive(root):
        if not root.is_file():
            raise FileNotFoundError(f"no archive of videos at {root}")
        return [root]
    found = [root / path for path in find_files(root, ENDINGS)]
    if not found:
        raise ValueError(f"no archives below {root} (looked for {' '.join(sorted(ENDINGS))})")
    return found


def _read_samples(path: Path) -> Iterator[Sample]:
    members = list_members(path)
    by_name = {member.name: member for member in members}
    for member in members:
        name = PurePosixPath(member.name)
        if name.suffix.lower() not in EXTENSIONS:
            continue
        stems = _stems(member.name)
        description = next((by_name[f"{stem}.json"] for stem in stems if f"{stem}.json" in by_name), None)
        label = next((by_name[f"{stem}.cls"] for stem in stems if f"{stem}.cls" in by_name), None)
        values = {} if description is None else _read_json(path, description)
        text = "" if label is None else _read_text(path, label).strip()
        number = class_number(text)
        if text and number is None:
            values.setdefault("label", text)
        yield Sample(path, name, values, number, member)


def _stems(name: str) -> list[str]:
    """Return the names that files beside a video may have: its own without ending, and WebDataset's key."""
    key = SAMPLE_KEY.match(name)
    return [str(PurePosixPath(name).with_suffix("")), *([] if key is None else [key[1]])]


def _read_text(path: Path, member: Member) -> str:
    try:
        return read_member(path, member).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ValueError(f"{path}: {member.name!r} is not UTF-8 text") from None


def _read_json(path: Path, member: Member) -> dict[str, str]:
    text = _read_text(path, member)
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise ValueError(f"{path}: {member.name!r} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f'{path}: {member.name!r} is not an object like {{"label": "Archery"}}')
    return parse_values(values, f"{path}: {member.name!r}")
