"""What has become of each video: one small file a video, written once, below `<store>/.work/`.

The tables of the store (manifest.csv, failures.csv) are made from these, so they can be made again at any time.
"""

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from covid_cmsf.atomic import sync_folder
from covid_cmsf.clips.manifest import ClipRecord, Failure


def key_of(video_id: str) -> str:
    """A name for a video that every file system takes."""
    return hashlib.sha256(video_id.encode("utf-8", "surrogateescape")).hexdigest()[:32]


class Ledger:
    """The outcomes of a store's videos: a ClipRecord or a Failure each, at most one, whoever writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def outcome(self, video_id: str) -> ClipRecord | Failure | None:
        """What has become of this video; None = nothing yet."""
        return self._read(self._path(video_id))

    def write(self, outcome: ClipRecord | Failure) -> bool:
        """Records an outcome, flushed to disk. False if there is one already (it stays)."""
        path = self._path(outcome.video_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{uuid.uuid4().hex}.tmp")
        try:
            with temporary.open("w", encoding="ascii") as file:
                json.dump({type(outcome).__name__: asdict(outcome)}, file)
                file.flush()
                os.fsync(file.fileno())
            os.link(temporary, path)  # unlike a rename, this never replaces
        except FileExistsError:
            return False
        finally:
            temporary.unlink(missing_ok=True)
        sync_folder(path.parent)
        return True

    def forget(self, video_id: str) -> None:
        """Removes an outcome, so that the video is done again."""
        self._path(video_id).unlink(missing_ok=True)

    def outcomes(self) -> Iterator[ClipRecord | Failure]:
        """All outcomes, in no particular order."""
        for path in self._folder.glob("??/*.json"):
            if (outcome := self._read(path)) is not None:
                yield outcome

    def _path(self, video_id: str) -> Path:
        key = key_of(video_id)
        return self._folder / key[:2] / f"{key}.json"

    @staticmethod
    def _read(path: Path) -> ClipRecord | Failure | None:
        try:
            values = json.loads(path.read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        if "ClipRecord" in values:
            return ClipRecord(**values["ClipRecord"])
        return Failure(**values["Failure"])
