"""Checkpoints: written atomically, verified by hash, resumed from the newest valid one.

    checkpoints/
      index.json                     all checkpoints, oldest first: file, sha256, epoch, batch, step, kept, format
      step-00000120-epoch-0003.pt    {"format": 2, "encoder": metadata, "state": {...}, "optimizer": ..., ...}
      last.pt                        a link to the newest

A file enters the index after it is on disk, and leaves the disk after it left the index; so a kill at any moment leaves
an index whose files are complete. The two newest are never removed. A stop after the last batch of an epoch and the
end of that epoch are the same step; the name has both step and epoch, so that neither replaces the other.

A sound checkpoint that the index does not list (the index was lost or damaged, or a kill came before it was written) is
listed again. A damaged one is left alone: only files that the index lists are ever removed. A resumed run also links
`last.pt` again: one that was killed between its very last checkpoint and the link writes no further checkpoint.
"""

import json
import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from covid_cmsf.files import file_sha256, fsync_dir, write_text_atomic
from covid_cmsf.models.checkpoints.formats.native import CHECKPOINT_FORMAT
from covid_cmsf.models.checkpoints.reader import read_checkpoint_file
from covid_cmsf.models.checkpoints.torch_file import write_torch_file

logger = logging.getLogger(__name__)
NEWEST = 2  # checkpoints that are never removed: the last, and the one to fall back on
FILE_NAME = re.compile(r"step-(\d+)-epoch-(\d+)\.pt")


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

    def __post_init__(self) -> None:
        if not FILE_NAME.fullmatch(self.file):  # nothing outside of the folder is ever read or removed
            raise ValueError(f"{self.file!r} is not the name of a checkpoint")
        if not all(isinstance(number, int) for number in (self.epoch, self.batch, self.step, self.format)):
            raise ValueError(f"{self.file}: epoch, batch, step and format must be whole numbers")


class Checkpoints:
    """The checkpoints of one run, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.index = folder / "index.json"
        self._unlisted: dict[str, CheckpointEntry | None] = {}  # file: None if it is damaged

    @property
    def last(self) -> Path:
        """The path of the newest checkpoint."""
        return self.folder / "last.pt"

    def entries(self) -> list[CheckpointEntry]:
        """Return the entries of the index and of sound files that it does not list, oldest first."""
        listed = self._read_index()
        names = {entry.file for entry in listed}
        files = [path for path in self._files() if path.name not in names]
        unlisted = [entry for entry in map(self._inspect, files) if entry is not None]
        return sorted([*listed, *unlisted], key=lambda entry: (entry.step, entry.epoch))

    def save(self, values: Mapping[str, Any], *, epoch: int, batch: int, step: int, kept: bool, keep: int) -> Path:
        """Write a checkpoint, then the index; remove all listed ones but the newest and the last `keep` kept ones."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".*.tmp"):  # left by a kill
            left.unlink()
        before = self.entries()
        path = self.folder / f"step-{step:08d}-epoch-{epoch:04d}.pt"
        write_torch_file(path, {"format": CHECKPOINT_FORMAT, "kept": kept, **values})
        entry = CheckpointEntry(path.name, file_sha256(path), epoch, batch, step, kept, CHECKPOINT_FORMAT)
        # Checkpoints of later steps were damaged, or the run would have resumed from them.
        earlier = [one for one in before if one.step <= step and one.file != entry.file]
        entries = [*earlier, entry]
        of_epochs = [one for one in entries if one.kept][-keep:]
        stay = [one for one in entries if one in of_epochs or one in entries[-NEWEST:]]
        self._write_index(stay)
        self._link(path)
        for old in {one.file for one in before} - {one.file for one in stay}:
            (self.folder / old).unlink(missing_ok=True)
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
        for entry in reversed(self.entries()):
            fault = self._fault(entry)
            if fault is None:
                return dict(read_checkpoint_file(self.folder / entry.file).values)
            logger.warning("checkpoint %s %s; trying the one before it", self.folder / entry.file, fault)
        if self.index.exists() or self._files():
            raise ValueError(
                f"no checkpoint in {self.folder} is valid; copy one back, or remove the run folder to start again"
            )
        return None

    def repair(self) -> None:
        """List the newest valid checkpoint in the index and link `last.pt` to it, where a kill came before that."""
        newest = next((entry for entry in reversed(self.entries()) if self._fault(entry) is None), None)
        if newest is None:
            return
        if newest not in self._read_index():
            self._write_index(self.entries())
        if not self.last.is_symlink() or self.last.readlink() != Path(newest.file):
            self._link(self.folder / newest.file)

    def _files(self) -> list[Path]:
        return sorted(path for path in self.folder.glob("step-*.pt") if FILE_NAME.fullmatch(path.name))

    def _read_index(self) -> list[CheckpointEntry]:
        """Return the entries of the index; none if it is lost or damaged, for the files are inspected then."""
        try:
            return [CheckpointEntry(**values) for values in json.loads(self.index.read_text(encoding="utf-8"))]
        except FileNotFoundError:
            return []
        except (ValueError, TypeError) as error:  # ValueError: not JSON, not UTF-8
            if not self._unlisted:
                logger.warning("%s is damaged (%s); it is made anew from the checkpoints beside it", self.index, error)
            return []

    def _write_index(self, entries: list[CheckpointEntry]) -> None:
        write_text_atomic(self.index, json.dumps([asdict(one) for one in entries], indent=1) + "\n")

    def _inspect(self, path: Path) -> CheckpointEntry | None:
        """Return the entry of a file that the index does not list; None if the file is damaged."""
        if path.name not in self._unlisted:
            self._unlisted[path.name] = self._read_entry(path)
        return self._unlisted[path.name]

    def _read_entry(self, path: Path) -> CheckpointEntry | None:
        try:
            values = read_checkpoint_file(path).values
        except ValueError as error:
            logger.warning("%s; index.json does not list it, and it is left as it is", error)
            return None
        logger.warning("%s was not listed in index.json; it is sound, and listed again", path)
        found = FILE_NAME.fullmatch(path.name)
        assert found is not None
        step, epoch = map(int, found.groups())
        batch = values.get("progress", {}).get("batch", 0)
        # Where it is unknown whether it was to be kept (version 0.1.0), it is.
        kept = bool(values.get("kept", True))
        return CheckpointEntry(path.name, file_sha256(path), epoch, batch, step, kept, values.get("format", 1))

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
