"""Layouts of video collections on disk: each turns a folder or list into videos with labels, sources and splits."""

from collections.abc import Callable
from pathlib import Path

from preprocess.layouts.collection import Collection, Video, escape_names, select_classes, select_shard
from preprocess.layouts.folders import scan_flat, scan_folder
from preprocess.layouts.hmdb51 import scan_hmdb51
from preprocess.layouts.kinetics import scan_kinetics
from preprocess.layouts.ucf101 import scan_ucf101
from preprocess.layouts.video_list import is_video_list, scan_list

__all__ = ["LAYOUTS", "Collection", "Video", "default_layout", "scan_collection", "select_shard"]

LAYOUTS = ("ucf101", "hmdb51", "kinetics", "folder", "flat", "list")


def default_layout(root: Path) -> str:
    """Return the layout of videos that none was named for: list for a CSV or JSONL file, else folder."""
    return "list" if is_video_list(root) else "folder"


def scan_collection(
    layout: str,
    root: Path,
    *,
    splits: Path | None = None,
    test_fraction: float | None = None,
    seed: int = 0,
    source_pattern: str | None = None,
    classes: list[str] | None = None,
) -> Collection:
    """Scan the collection at `root`; `classes` are the names of those to keep, None: all.

    `splits` is for the layouts ucf101, hmdb51 and kinetics; `test_fraction` and `seed` for folder and list;
    `source_pattern` for folder and flat.
    """
    fraction = 0.25 if test_fraction is None else test_fraction
    scanners: dict[str, Callable[[], Collection]] = {
        "ucf101": lambda: scan_ucf101(root, splits),
        "hmdb51": lambda: scan_hmdb51(root, splits),
        "kinetics": lambda: scan_kinetics(root, splits),
        "folder": lambda: scan_folder(root, test_fraction=fraction, seed=seed, source_pattern=source_pattern),
        "flat": lambda: scan_flat(root, source_pattern=source_pattern),
        "list": lambda: scan_list(root, test_fraction=test_fraction, seed=seed),
    }
    assert tuple(scanners) == LAYOUTS
    if layout not in scanners:
        raise ValueError(f"unknown layout {layout!r}; choose from {', '.join(LAYOUTS)}")
    if splits is not None and layout in ("folder", "flat", "list"):
        raise ValueError(f"layout {layout!r} reads no split lists; leave --splits out")
    if source_pattern is not None and layout not in ("folder", "flat"):
        raise ValueError(f"layout {layout!r} has its own rule for sources; leave --source-pattern out")
    if test_fraction is not None and layout not in ("folder", "list"):
        raise ValueError(f"layout {layout!r} makes no split of its own; leave --test-fraction out")
    if splits is not None and not splits.exists():
        raise FileNotFoundError(f"no split lists at {splits}")
    collection = escape_names(scanners[layout]())
    return collection if classes is None else select_classes(collection, classes)
