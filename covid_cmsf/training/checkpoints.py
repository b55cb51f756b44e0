"""Checkpoints: written atomically, verified by hash, resumed from the newest valid one.

    checkpoints/
      index.json                     all checkpoints, oldest first: file, sha256, epoch, batch, step, kept, format
      step-00000120-epoch-0003.pt    {"format": 2, "encoder": metadata, "state": {...}, "optimizer": ..., ...}
      last.pt                        a link to the newest

A file enters the index after it is on disk, and leaves the disk after it left the index; so a kill at any moment leaves
an index whose files are complete. The two newest are never removed. A stop after the last batch of an epoch and the
end of that epoch are the same step; the name has both step and epoch, so that neither replaces the other.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from covid_cmsf.files import atomic_path, file_sha256, fsync_dir, write_text_atomic
from covid_cmsf.models.checkpoints.formats.native import CHECKPOINT_FORMAT

logger = logging.getLogger(__name__)
NEWEST = 2  # checkpoints that are never removed: the last, and the one to fall back on


@dataclass(frozen=True)
class CheckpointEntry:
    """One checkpoint in the index; `kept` marks those of `keep_every_epochs`."""

    file: str
    sha256: str
    epoch: int
    batch: int
    step: int
    kept: bool
    format: int = 1  # version 0.1.0 did not write it into the index


class Checkpoints:
    """The checkpoints of one run, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "index.json"

    @property
    def last(self) -> Path:
        """The path of the newest checkpoint."""
        return self.folder / "last.pt"

    def entries(self) -> list[CheckpointEntry]:
        """Return the entries of the index, oldest first."""
        if not self.index.is_file():
            return []
        try:
            return [CheckpointEntry(**values) for values in json.loads(self.index.read_text(encoding="utf-8"))]
        except (json.JSONDecodeError, TypeError) as error:
            raise ValueError(f"{self.index} is damaged ({error}); it lists the checkpoints beside it") from None

    def save(self, values: Mapping[str, Any], *, epoch: int, batch: int, step: int, kept: bool, keep: int) -> Path:
        """Write a checkpoint, then the index; remove all but the newest and the last `keep` kept ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".*.tmp"):  # left by a kill
            left.unlink()
        path = self.folder / f"step-{step:08d}-epoch-{epoch:04d}.pt"
        with atomic_path(path) as temporary:
            torch.save({"format": CHECKPOINT_FORMAT, **values}, temporary)
            digest = file_sha256(temporary)
        entry = CheckpointEntry(path.name, digest, epoch, batch, step, kept, CHECKPOINT_FORMAT)
        # Checkpoints of later steps were damaged, or the run would have resumed from them.
        earlier = [one for one in self.entries() if one.step <= step and one.file != entry.file]
        entries = [*earlier, entry]
        of_epochs = [one for one in entries if one.kept][-keep:]
        stay = [one for one in entries if one in of_epochs or one in entries[-NEWEST:]]
        write_text_atomic(self.index, json.dumps([asdict(one) for one in stay], indent=1) + "\n")
        self._link(path)
        for old in self.folder.glob("step-*.pt"):
            if old.name not in {one.file for one in stay}:
                old.unlink()
        return path

    def check_resumable(self) -> None:
        """Raise ValueError when the checkpoints have a format that this version does not resume."""
        other = [entry for entry in self.entries() if entry.format != CHECKPOINT_FORMAT]
        if other:
            raise ValueError(
                f"{self.folder / other[-1].file} has format {other[-1].format}, from another version of covid-cmsf; "
                f"only format {CHECKPOINT_FORMAT} is resumed. Start a new run in another folder; "
                f"init={self.last} starts from its weights"
            )

    def load(self) -> dict[str, Any] | None:
        """Return the newest valid checkpoint; None if there never was one, an error if none is valid."""
        self.check_resumable()
        entries = self.entries()
        for entry in reversed(entries):
            fault = self._fault(entry)
            if fault is None:
                checkpoint: dict[str, Any] = torch.load(self.folder / entry.file, map_location="cpu", weights_only=True)
                return checkpoint
            logger.warning("checkpoint %s %s; trying the one before it", self.folder / entry.file, fault)
        if entries:
            raise ValueError(f"no checkpoint in {self.folder} is valid; remove the run folder to start again")
        return None

    def _fault(self, entry: CheckpointEntry) -> str | None:
        path = self.folder / entry.file
        if not path.is_file():
            return "is gone"
        return None if file_sha256(path) == entry.sha256 else "is damaged (its hash is wrong)"

    def _link(self, path: Path) -> None:
        temporary = self.folder / ".last.tmp"
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(path.name)
        temporary.replace(self.last)
        fsync_dir(self.folder)
