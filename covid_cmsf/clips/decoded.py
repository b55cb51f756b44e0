"""Decoded clips in a file that all processes of a machine map into their memory, and later runs too.

FOLDER/
  MODALITY-KEY.u8       the frames of the videos, one video after the other, uint8, in the layout of the decoder
  MODALITY-KEY.jsonl    a line per video: where it is, its shape, its CRC-32; then a line that says it is complete

KEY is a hash of the videos and of the sizes and times of their files: replaced videos get another file. One process
writes while the others wait. A killed one is continued at the first video that is not listed. The kernel keeps the
file's pages in memory as long as there is room, once for all processes. FOLDER should be on a fast disk of this
machine.

Shapes: T frames, C channels, H x W pixels.
"""

import hashlib
import json
import os
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from covid_cmsf.clips.base import Clips, check_request
from covid_cmsf.clips.fingerprint import files_fingerprint
from covid_cmsf.clips.records import FLOW_MODALITIES, ClipRecord
from covid_cmsf.files import fsync_dir, read_text
from covid_cmsf.locks import lock_file

FORMAT_VERSION = 1
SYNC_BYTES = 2**28  # frames between two times at which the disk is waited for and videos are listed


class DecodedClips(Clips):
    """Clips decoded once into files of `folder`. A video that can't be decoded raises the decoder's error, as without.

    A video's frames are compared with their CRC-32 when a process first reads them. Pickled, for the workers of a data
    loader, it is as large as `clips`: each process opens the files itself.
    """

    def __init__(
        self,
        clips: Clips,
        records: Sequence[ClipRecord],
        modalities: Sequence[str],
        *,
        folder: Path,
        on_video: Callable[[], None] = lambda: None,
    ) -> None:
        self._clips = clips
        for name in Clips.__annotations__:  # everything that the interface promises
            setattr(self, name, getattr(clips, name))
        folder.mkdir(parents=True, exist_ok=True)
        self._frames: dict[str, FramesFile] = {}
        for modality in modalities:
            path = frames_path(folder, clips, records, modality)
            write_frames(clips, records, modality, path, on_video=on_video)
            self._frames[modality] = FramesFile(path)

    def read_raw(self, record: ClipRecord, modality: str, frame_indices: Sequence[int]) -> Tensor:
        """Return what the wrapped clips' `read_raw` returns, from the file where possible."""
        if modality not in self._frames or (frames := self._frames[modality].video(record.video_id)) is None:
            return self._clips.read_raw(record, modality, frame_indices)
        check_request(record, modality, frame_indices, self.modalities)
        selected = torch.from_numpy(frames[list(frame_indices)])  # a copy: the file is mapped read-only
        return selected if self._frames[modality].is_planar(record.video_id) else selected.permute(0, 3, 1, 2)

    def files(self, record: ClipRecord, modality: str) -> list[Path]:
        """Return the wrapped clips' files."""
        return self._clips.files(record, modality)


def frames_path(folder: Path, clips: Clips, records: Sequence[ClipRecord], modality: str) -> Path:
    """Return the file that has, or will have, these frames; ValueError as from `cache_key`."""
    return folder / f"{modality}-{cache_key(clips, records, modality)}.u8"


def cache_key(clips: Clips, records: Sequence[ClipRecord], modality: str) -> str:
    """Return the hash in the name of a file; ValueError if it could not be told whether the clips have changed."""
    files = files_fingerprint(clips, records, [modality])
    if not files:
        raise ValueError("runtime.cache_dir is for clips in files that can be told apart; these are in memory already")
    return hashlib.sha256(f"{FORMAT_VERSION} {files}".encode()).hexdigest()[:16]


def write_frames(
    clips: Clips,
    records: Sequence[ClipRecord],
    modality: str,
    path: Path,
    *,
    on_video: Callable[[], None] = lambda: None,
) -> None:
    """Decode all videos that a file does not have yet. Waits for a process that is writing it."""
    index = path.with_suffix(".jsonl")
    with lock_file(path.with_suffix(".lock"), wait=True):
        listed, is_complete = read_index(index)
        num_bytes = path.stat().st_size if path.is_file() else 0
        entries = [entry for entry in listed if entry["end"] <= num_bytes]  # of a file that was cut or removed
        if is_complete and len(entries) == len(listed):
            return
        done = {entry["video"] for entry in entries}
        end = max((entry["end"] for entry in entries), default=0)
        with path.open("r+b" if path.exists() else "w+b") as data, index.open("w") as lines:
            lines.writelines(json.dumps(entry) + "\n" for entry in entries)  # without a line that was cut off
            data.truncate(end)
            data.seek(end)
            waiting: list[dict[str, Any]] = []
            synced = end
            for record in records:
                if record.video_id not in done:
                    entry, frames = _decode(clips, record, modality, start=end)
                    waiting.append(entry)
                    data.write(frames.data)
                    end = entry["end"]
                    if end - synced >= SYNC_BYTES:
                        _list_videos(data.fileno(), data.flush, lines, waiting)
                        synced, waiting = end, []
                on_video()
            _list_videos(data.fileno(), data.flush, lines, [*waiting, {"complete": len(records), "end": end}])
        fsync_dir(path.parent)


def _list_videos(descriptor: int, flush: Callable[[], None], lines: Any, entries: list[dict[str, Any]]) -> None:
    """Put the frames on the disk, and only then the lines that list them."""
    flush()
    os.fsync(descriptor)
    lines.writelines(json.dumps(entry) + "\n" for entry in entries)
    lines.flush()
    os.fsync(lines.fileno())


def _decode(clips: Clips, record: ClipRecord, modality: str, *, start: int) -> tuple[dict[str, Any], NDArray[np.uint8]]:
    """Return a video's line of the index and its frames; without a shape if it can't be decoded."""
    count = record.num_flow if modality in FLOW_MODALITIES else record.num_frames
    entry: dict[str, Any] = {"video": record.video_id, "start": start, "end": start}
    try:
        decoded = clips.read_raw(record, modality, list(range(count)))
    except (ValueError, OSError):
        return entry, np.empty(0, np.uint8)
    is_planar = not decoded.permute(0, 2, 3, 1).is_contiguous()
    frames = (decoded if is_planar else decoded.permute(0, 2, 3, 1)).contiguous().numpy()
    entry |= {"end": start + frames.size, "shape": frames.shape, "planar": is_planar, "crc32": zlib.crc32(frames.data)}
    return entry, frames


def read_index(path: Path) -> tuple[list[dict[str, Any]], bool]:
    """Return the lines of videos, and whether all are there; a last line that was cut off does not count."""
    if not path.is_file():
        return [], False
    entries: list[dict[str, Any]] = []
    for line in read_text(path).splitlines():
        try:
            entry = json.loads(line)
        except json.JSONDecodeError:
            break
        if "complete" in entry:
            return entries, True
        entries.append(entry)
    return entries, False


class FramesFile:
    """The frames of a complete file, mapped when they are first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._entries: dict[str, dict[str, Any]] | None = None
        self._memory: NDArray[np.uint8] | None = None
        self._verified: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return {"path": self.path, "_entries": None, "_memory": None, "_verified": set()}

    def video(self, video_id: str) -> NDArray[np.uint8] | None:
        """Return a video's frames, (T, H, W, C) or planar (T, C, H, W); None if they are not in the file."""
        if self._entries is None:
            entries, is_complete = read_index(self.path.with_suffix(".jsonl"))
            if not is_complete:
                raise ValueError(f"{self.path} is not complete any more; run the same command again")
            self._entries = {entry["video"]: entry for entry in entries if "shape" in entry}
            if self._entries:
                self._memory = np.memmap(self.path, dtype=np.uint8, mode="r")
        entry = self._entries.get(video_id)
        if entry is None or self._memory is None:
            return None
        values = self._memory[entry["start"] : entry["end"]]
        if video_id not in self._verified:
            if len(values) != entry["end"] - entry["start"] or zlib.crc32(values.data) != entry["crc32"]:
                raise ValueError(f"{self.path} is damaged at {video_id}: delete it and {self.path.stem}.jsonl")
            self._verified.add(video_id)
        return values.reshape(entry["shape"])

    def is_planar(self, video_id: str) -> bool:
        """Return whether the frames of a video in the file are (T, C, H, W)."""
        assert self._entries is not None, "call `video` first"
        return bool(self._entries[video_id]["planar"])
