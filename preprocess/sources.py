"""The source of a video: as a file of this machine, and whether it was replaced, or is to be cut at other times."""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from covid_cmsf.clips.cuts import cut_times
from covid_cmsf.clips.records import ClipRecord, Failure
from covid_cmsf.files import file_sha256
from preprocess.archives import Member, copy_member, member_sha256
from preprocess.convert import StageError
from preprocess.layouts import Video

logger = logging.getLogger(__name__)


def changed_sources(videos: Iterable[Video], outcomes: Mapping[str, ClipRecord | Failure]) -> Iterator[Video]:
    """Yield the converted videos whose file is another one now: by size, else by time and then by SHA-256.

    So is a video whose list has other start and end times now.

    A store of an older version does not know size and time: nothing is compared then, as all files would have to be
    read.
    """
    hashes: dict[tuple[Path, Member | None], str] = {}  # a file may have many cuts
    for video in videos:
        record = outcomes.get(video.video_id)
        if not isinstance(record, ClipRecord):
            continue
        if cut_times(record) != cut_times(video):
            yield video
            continue
        if not record.source_bytes:
            continue
        try:
            num_bytes, mtime_ns = _size_and_time(video)
        except OSError:
            continue  # it is gone: what was made of it stays
        if num_bytes != record.source_bytes:
            yield video
        elif mtime_ns != record.source_mtime_ns:
            key = video.path, video.member
            if key not in hashes:
                hashes[key] = (
                    file_sha256(video.path) if video.member is None else member_sha256(video.path, video.member)
                )
            if hashes[key] != record.source_sha256:
                yield video
    if hashes:
        logger.info(
            "%d source videos have another time than when they were converted; their content was compared", len(hashes)
        )


def _size_and_time(video: Video) -> tuple[int, int]:
    """Return size and modification time; the time of a member is that of its archive."""
    if video.member is not None:
        return video.member.num_bytes, video.member.archive_mtime_ns
    status = video.path.stat()
    return status.st_size, status.st_mtime_ns


@contextmanager
def local_source(path: Path, member: Member | None, folder: Path) -> Iterator[Path]:
    """Yield the video file; a member of an archive as a temporary file in `folder`, which is then removed."""
    if member is None:
        yield path
        return
    temporary = folder / f"source{Path(member.name).suffix}"
    try:
        try:
            copy_member(path, member, temporary)
        except (ValueError, FileNotFoundError, PermissionError) as error:
            raise StageError("extract", str(error)) from error
        yield temporary
    except StageError as error:  # in the words of the archive: the temporary name is another one in every run
        raise StageError(error.stage, error.reason.replace(str(temporary), f"{path}: {member.name}")) from error
    finally:
        temporary.unlink(missing_ok=True)
