"""Finished shards of an extraction, in a hidden folder beside the file to come, so that a kill costs little.

Every shard carries the fingerprint of the whole extraction. One with another fingerprint (another checkpoint, other
settings, other clips) is never used.
"""

import json
import logging
import shutil
from dataclasses import dataclass
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from covid_cmsf.files import atomic_path

logger = logging.getLogger(__name__)
HEADER_KEY = "covid_cmsf_shard"
SHARD_SIZE = 32  # videos


@dataclass(frozen=True)
class Shard:
    """Some consecutive videos: their windows one after the other, and why others have none."""

    windows: Tensor  # (W, D)
    window_videos: Tensor  # (W,) number of the video in the whole list
    window_starts: Tensor  # (W,)
    errors: dict[int, str]  # number of the video: reason


class ShardStore:
    """The shards of one extraction to `out`."""

    def __init__(self, out: Path, fingerprint: str) -> None:
        self.folder, self._fingerprint = out.with_name(f".{out.name}.shards"), fingerprint

    def open(self) -> set[int]:
        """Makes the folder; returns the numbers of the shards that can be used, and removes all others."""
        self.folder.mkdir(exist_ok=True)
        usable, num_stale = set(), 0
        for path in sorted(self.folder.iterdir()):
            if path.stem.isdigit() and self._read(path) is not None:
                usable.add(int(path.stem))
            else:
                path.unlink()
                num_stale += path.suffix == ".safetensors"
        if num_stale:
            logger.warning("removed %d shards of another extraction from %s", num_stale, self.folder)
        return usable

    def save(self, number: int, shard: Shard) -> None:
        """Writes one shard under its final name only when it is whole."""
        header = json.dumps({"fingerprint": self._fingerprint, "errors": shard.errors})
        tensors = {name: getattr(shard, name).contiguous() for name in ("windows", "window_videos", "window_starts")}
        with atomic_path(self._path(number)) as temporary:
            temporary.write_bytes(save(tensors, metadata={HEADER_KEY: header}))

    def load(self, number: int) -> Shard:
        """A shard that `open` found or `save` wrote."""
        shard = self._read(self._path(number))
        if shard is None:
            raise RuntimeError(f"{self._path(number)} has vanished or changed; does another extraction use this name?")
        return shard

    def remove(self) -> None:
        """The file is written: the shards are no longer needed."""
        shutil.rmtree(self.folder)

    def _path(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    def _read(self, path: Path) -> Shard | None:
        try:
            with safe_open(path, framework="pt") as file:
                header = json.loads((file.metadata() or {}).get(HEADER_KEY, "{}"))
                if header.get("fingerprint") != self._fingerprint:
                    return None
                tensors = {name: file.get_tensor(name) for name in ("windows", "window_videos", "window_starts")}
        except (SafetensorError, OSError):
            return None
        return Shard(**tensors, errors={int(number): reason for number, reason in header["errors"].items()})
