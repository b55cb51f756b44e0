"""The folder of a demo set: what belongs in it, what is missing, and whether we may write into it."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from preprocess.demo_videos.names import ClipName
from preprocess.demo_videos.settings import DemoSettings
from preprocess.demo_videos.writing import write_bytes, write_lines

MARKER = "demo.json"  # the settings, written before the first video
FORMAT = 1  # raise it when the same settings begin to give other bytes
SPLITS = "splits"
TEMPORARY = ".*.tmp"  # what `covid_cmsf.atomic` calls a file before it is whole


def clip_names(settings: DemoSettings) -> list[ClipName]:
    """Every clip of the set, by class, group and clip."""
    return [
        ClipName(class_name, group, clip)
        for class_name in settings.class_names
        for group in range(1, settings.num_groups + 1)
        for clip in range(1, settings.clips_per_group + 1)
    ]


def missing_clips(out: Path, settings: DemoSettings) -> list[ClipName]:
    """The clips that have no file yet; a file that is there is whole."""
    return [name for name in clip_names(settings) if not (out / name.path).exists()]


def claim(out: Path, settings: DemoSettings) -> None:
    """Makes the folder and marks it with the settings, or makes sure that it was made with the same ones."""
    wanted = {"format": FORMAT, **asdict(settings)}
    marker = out / MARKER
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"{out} is a file; demo-videos needs a folder")
    if marker.exists():
        _compare(out, json.loads(marker.read_text(encoding="utf-8")), wanted)
    elif out.is_dir() and any(not path.match(TEMPORARY) for path in out.iterdir()):
        raise FileExistsError(f"{out} is not empty and not a demo set; choose a new or empty folder")
    else:
        write_bytes(marker, (json.dumps(wanted, indent=2) + "\n").encode())


def write_splits(out: Path, settings: DemoSettings) -> None:
    """Writes the class index and split 1 as UCF-101's official lists: the first groups are for testing."""
    labels = {name: label for label, name in enumerate(settings.class_names, start=1)}
    names = clip_names(settings)
    train = [name for name in names if name.group > settings.num_test_groups]
    test = [name for name in names if name.group <= settings.num_test_groups]
    splits = out / SPLITS
    write_lines(splits / "classInd.txt", [f"{label} {name}" for name, label in labels.items()])
    write_lines(splits / "trainlist01.txt", [f"{name.path} {labels[name.class_name]}" for name in train])
    write_lines(splits / "testlist01.txt", [name.path for name in test])


def remove_temporary_files(out: Path) -> None:
    """Removes what a killed run had begun to write."""
    for path in out.rglob(TEMPORARY):
        path.unlink(missing_ok=True)


def _compare(out: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    different = [name for name in wanted if found.get(name) != wanted[name]]
    if different:
        words = ", ".join(f"{name} {found.get(name)} there and {wanted[name]} asked for" for name in different)
        raise FileExistsError(f"{out} holds a demo set with other settings ({words}); choose another folder")
