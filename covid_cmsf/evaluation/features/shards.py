"""Shards of an extraction that is under way, in a hidden folder beside the output file, to resume from.

Every shard has the fingerprint of the whole extraction, or its own one. Shards with another fingerprint (another
checkpoint, other settings, other clips) are never used.
"""

import fcntl
import json
import logging
import shutil
from collections.abc import Sequence
from pathlib import Path

from covid_cmsf.evaluation.features.inference import WindowOutputs
from covid_cmsf.verified_files import read_tensors, write_tensors

logger = logging.getLogger(__name__)
HEADER_KEY = "covid_cmsf_shard"
SHARD_SIZE = 32  # videos
LOCK = ".lock"
TENSORS = ("windows", "window_videos", "window_starts")


class ShardStore:
    """Shards of one extraction to the file `out`; each has the outputs of consecutive videos."""

    def __init__(self, out: Path, fingerprint: str | Sequence[str]) -> None:
        """Name the file and what its shards depend on; several fingerprints are one per shard."""
        self._out, self._fingerprints = out, fingerprint
        self.folder = out.with_name(f".{out.name}.shards")

    def __enter__(self) -> "ShardStore":
        """Create the folder and lock it; ValueError if another process extracts to the same file."""
        self.folder.mkdir(exist_ok=True)
        self._lock = (self.folder / LOCK).open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise ValueError(
                f"another process extracts features to {self._out}; wait for it, or choose another --out"
            ) from None
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()  # unlocks; the system does so if the process is killed

    def open(self) -> set[int]:
        """Return the numbers of the usable shards, and remove all others."""
        usable, num_stale = set(), 0
        for path in sorted(path for path in self.folder.iterdir() if path.name != LOCK):
            if path.stem.isdigit() and self._read(path) is not None:
                usable.add(int(path.stem))
            else:
                path.unlink()
                num_stale += path.suffix == ".safetensors"
        if num_stale:
            logger.warning("removed %d shards of another extraction from %s", num_stale, self.folder)
        return usable

    def save(self, number: int, shard: WindowOutputs) -> None:
        """Write a shard atomically."""
        header = json.dumps({"fingerprint": self._fingerprint(number), "errors": shard.errors})
        tensors = {name: getattr(shard, name) for name in TENSORS}
        write_tensors(self._path(number), tensors, metadata={HEADER_KEY: header})

    def load(self, number: int) -> WindowOutputs:
        """Load a shard that `open` found or `save` wrote."""
        shard = self._read(self._path(number))
        if shard is None:
            raise RuntimeError(
                f"{self._path(number)} was removed or changed; does another extraction write to the same file?"
            )
        return shard

    def remove(self) -> None:
        """Delete all shards, once the features file is written."""
        shutil.rmtree(self.folder)

    def _fingerprint(self, number: int) -> str | None:
        """Return the fingerprint that a shard must have; None if there is no such shard."""
        if isinstance(self._fingerprints, str):
            return self._fingerprints
        return self._fingerprints[number] if number < len(self._fingerprints) else None

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _read(self, path: Path) -> WindowOutputs | None:
        """Return the shard in a file; None if it is of another extraction, or damaged."""
        try:
            tensors, metadata = read_tensors(path)
            header = json.loads(metadata.get(HEADER_KEY, "{}"))
            if header["fingerprint"] != self._fingerprint(int(path.stem)):
                return None
            errors = {int(number): str(reason) for number, reason in header["errors"].items()}
            return WindowOutputs(**{name: tensors[name] for name in TENSORS}, errors=errors)
        except (ValueError, KeyError, OSError):  # DamagedFileError is a ValueError
            return None
