"""Finished stages of other plans: several plans that begin with the same InfoNCE networks train them once."""

import json
import logging
import os
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path

from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage import STAGE_RESULT, is_done, read_stage_key
from covid_cmsf.files import fsync_dir, read_text
from covid_cmsf.locks import Locked, lock_file

logger = logging.getLogger(__name__)


def finished_stages(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the folders of the finished stages below `folders`, by their keys; the first one found wins."""
    found: dict[str, Path] = {}
    for folder in folders:
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; --reuse takes the folder of a plan that was run")
        for path in sorted(folder.rglob(STAGE_RESULT)):
            try:
                key = json.loads(read_text(path)).get("key")
            except (json.JSONDecodeError, AttributeError):
                logger.warning("%s cannot be read: its stage is not reused", path)
                continue
            if isinstance(key, str) and read_stage_key(path.parent) == key:
                found.setdefault(key, path.parent)
    return found


def reuse_stages(stages: Sequence[Stage], finished: dict[str, Path]) -> list[str]:
    """Copy finished stages with the keys of `stages` that have no folder yet; return the names of those copied.

    A copy appears under its final name only when it is whole, so that a kill leaves no half of one. Files that training
    replaces as a whole, the checkpoints, are linked where the disk allows it.
    """
    reused = []
    for stage in stages:
        source = finished.get(stage.key) or finished.get(stage.old_key)
        if source is None or stage.folder.exists():
            continue
        if stage.config is not None and not (source / stage.checkpoint.relative_to(stage.folder)).is_file():
            continue  # its checkpoint was deleted
        stage.folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            with lock_file(stage.lock):
                if stage.folder.exists():
                    continue
                _copy_whole(source, stage.folder)
        except Locked:
            continue  # another process has begun it, or copies it
        evaluated = "" if is_done(stage) else "; it will be evaluated as this plan says"
        logger.info("stage %s is taken from %s%s", stage.name, source, evaluated)
        reused.append(stage.name)
    return reused


def _copy_whole(source: Path, folder: Path) -> None:
    temporary = folder.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        shutil.copytree(source, temporary, symlinks=True, copy_function=_link_or_copy)
        temporary.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    fsync_dir(folder.parent)


def _link_or_copy(source: str, destination: str) -> None:
    if source.endswith((".pt", ".safetensors")):
        try:
            os.link(source, destination, follow_symlinks=False)
            return
        except OSError:  # another disk, or one without links
            pass
    shutil.copy2(source, destination, follow_symlinks=False)
