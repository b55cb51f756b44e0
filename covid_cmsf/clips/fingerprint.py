"""A cheap fingerprint of the files behind some clips, to notice that they were replaced or truncated in place."""

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

from covid_cmsf.clips.base import Clips
from covid_cmsf.clips.records import ClipRecord


def files_fingerprint(clips: Clips, records: Iterable[ClipRecord], modalities: Sequence[str]) -> str:
    """Return a SHA-256 over size and modification time of the files of these records and stored modalities.

    Features and caches that were made from the clips are stale when it differs: the manifest and its hashes stay the
    same when a file is replaced in place. A copy of a store has other times unless they are preserved (`cp -a`). It
    costs one `stat` per file and reads nothing; empty if the clips are in memory (IDX files, torchvision). A missing
    file counts as such, it is not an error here. Of a folder of JPEG frames the first and the last one are looked at.

    Example:
        >>> clips = cc.open_clips("clips/ucf101")
        >>> files_fingerprint(clips, clips.select("1", "train"), ("rgb",)) == before
        True
    """
    return paths_fingerprint(
        (record.video_id, modality, path)
        for record in records
        for modality in modalities
        for path in clips.files(record, modality)
    )


def paths_fingerprint(files: Iterable[tuple[str, str, Path]]) -> str:
    """Return the same of files that nobody has opened: id of the video, stored modality, path."""
    digest, num_files = hashlib.sha256(), 0
    for video_id, modality, path in files:
        num_files += 1
        try:
            status = path.stat()
            state = f"{status.st_size} {status.st_mtime_ns}"
        except OSError:
            state = "missing"
        digest.update(f"{video_id}\0{modality}\0{state}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest() if num_files else ""
