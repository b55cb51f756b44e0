"""The videos that a plan trains on, fixed when the plan is made: tables of their own, and links to the clips.

A plan's stages depend on the tables of its clips. With tables of their own, videos that are added to the project later,
or taken away, change no stage.
"""

import os
from collections.abc import Sequence
from pathlib import Path

from covid_cmsf.clips.records import info_to_json, read_manifest, read_store_info, write_manifest, write_split
from covid_cmsf.files import write_text_atomic

STORE_FILE, MANIFEST = "store.json", "manifest.csv"


def write_training_tables(clips: Path, folder: Path, video_ids: Sequence[str]) -> None:
    """Write a clip store with these videos, whose files are those of `clips`."""
    wanted = set(video_ids)
    info = read_store_info(clips)
    records = [record for record in read_manifest(clips / MANIFEST) if record.video_id in wanted]
    (folder / "splits").mkdir(parents=True, exist_ok=True)
    for modality in info.modalities:
        _link(folder / modality, Path(os.path.relpath(clips / modality, folder)))
    write_split(folder / "splits" / "1.csv", {record.video_id: "train" for record in records})
    write_manifest(folder / MANIFEST, records)
    write_text_atomic(folder / STORE_FILE, info_to_json(info))


def _link(path: Path, target: Path) -> None:
    """Make a link to a folder, relative, so that a project can be moved."""
    if path.is_symlink():
        path.unlink()
    path.symlink_to(target, target_is_directory=True)
