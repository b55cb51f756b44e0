"""Layouts of video collections on disk: a folder, list or archive becomes videos with labels and splits."""

from collections.abc import Callable
from pathlib import Path

from preprocess.archives import is_archive
from preprocess.layouts.archive import scan_archives
from preprocess.layouts.collection import Collection, Video, escape_names, select_classes, select_shard
from preprocess.layouts.diving48 import scan_diving48
from preprocess.layouts.folders import scan_flat, scan_folder
from preprocess.layouts.hmdb51 import scan_hmdb51
from preprocess.layouts.huggingface import scan_huggingface
from preprocess.layouts.kinetics import scan_kinetics
from preprocess.layouts.something_something import scan_something_something
from preprocess.layouts.ucf101 import scan_ucf101
from preprocess.layouts.video_list import is_video_list, scan_list

__all__ = ["LAYOUTS", "Collection", "Video", "default_layout", "scan_collection", "select_shard"]

LAYOUTS = ("ucf101", "hmdb51", "kinetics", "ssv2", "diving48", "folder", "flat", "list", "archive", "huggingface")


def default_layout(root: Path) -> str:
    """Return the layout if none was named: list for a CSV or JSONL file, archive for .tar or .zip, else folder."""
    return "list" if is_video_list(root) else "archive" if is_archive(root) else "folder"


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

    `splits` is for the layouts ucf101, hmdb51, kinetics, ssv2 and diving48; `test_fraction` and `seed` for folder,
    list, archive and huggingface; `source_pattern` for folder, flat, archive and huggingface.
    """
    fraction = 0.25 if test_fraction is None else test_fraction
    scanners: dict[str, Callable[[], Collection]] = {
        "ucf101": lambda: scan_ucf101(root, splits),
        "hmdb51": lambda: scan_hmdb51(root, splits),
        "kinetics": lambda: scan_kinetics(root, splits),
        "ssv2": lambda: scan_something_something(root, splits),
        "diving48": lambda: scan_diving48(root, splits),
        "folder": lambda: scan_folder(root, test_fraction=fraction, seed=seed, source_pattern=source_pattern),
        "flat": lambda: scan_flat(root, source_pattern=source_pattern),
        "list": lambda: scan_list(root, test_fraction=test_fraction, seed=seed),
        "archive": lambda: scan_archives(root, test_fraction=test_fraction, seed=seed, source_pattern=source_pattern),
        "huggingface": lambda: scan_huggingface(
            root, test_fraction=test_fraction, seed=seed, source_pattern=source_pattern
        ),
    }
    assert tuple(scanners) == LAYOUTS
    if layout not in scanners:
        raise ValueError(f"unknown layout {layout!r}; choose from {', '.join(LAYOUTS)}")
    if splits is not None and layout in ("folder", "flat", "list", "archive", "huggingface"):
        raise ValueError(f"layout {layout!r} reads no split lists; leave --splits out")
    if source_pattern is not None and layout not in ("folder", "flat", "archive", "huggingface"):
        raise ValueError(f"layout {layout!r} has its own rule for sources; leave --source-pattern out")
    if test_fraction is not None and layout not in ("folder", "list", "archive", "huggingface"):
        raise ValueError(f"layout {layout!r} makes no split of its own; leave --test-fraction out")
    if splits is not None and not splits.exists():
        raise FileNotFoundError(f"no split lists at {splits}")
    collection = escape_names(scanners[layout]())
    return collection if classes is None else select_classes(collection, classes)
