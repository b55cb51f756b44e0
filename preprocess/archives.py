"""Tar and zip archives of videos: list their members, and copy one member at a time to a temporary file.

Nothing is ever extracted under a name of the archive's own, and archives are only read. An archive with a name that
leads out of its folder, or with a link, is refused as a whole.
"""

import hashlib
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import IO

ENDINGS = frozenset({".tar", ".zip"})
COMPRESSED = (".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".tar.zst")
MAX_TEXT = 1 << 20  # bytes of a label or JSON member
MAX_RATIO = 200  # of a zip member that is larger than MAX_TEXT; videos hardly compress, so this is no video
FOREIGN = "__MACOSX"  # a folder that macOS adds to zip files
COPY_SIZE = 1 << 20
END_BYTES = 1024  # of zeros end a tar


@dataclass(frozen=True)
class Member:
    """A file in an archive, and what identifies the archive that it was listed in."""

    name: str
    entry: str  # the name as the archive has it, with ./ and //
    num_bytes: int
    offset: int  # of its bytes in a tar; -1: in a zip, found by name
    archive_bytes: int
    archive_mtime_ns: int


def is_archive(path: Path) -> bool:
    """Return whether a path is that of an archive rather than of a folder or list."""
    return path.name.lower().endswith((*ENDINGS, *COMPRESSED)) and not path.is_dir()


def list_members(path: Path) -> list[Member]:
    """Return the files of an archive in its order, without hidden ones; ValueError if it can't be trusted."""
    if path.name.lower().endswith(COMPRESSED):
        raise ValueError(f"{path} is a compressed tar, whose members can't be read one by one: decompress it first")
    status = path.stat()
    read = _list_zip if path.suffix.lower() == ".zip" else _list_tar
    try:
        entries = list(read(path, status.st_size))
    except (tarfile.TarError, zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        kind = "zip file" if path.suffix.lower() == ".zip" else "uncompressed tar file"
        raise ValueError(f"{path} is no {kind}, or damaged: {error}") from None
    members = [
        Member(name, entry, num_bytes, offset, status.st_size, status.st_mtime_ns)
        for name, entry, num_bytes, offset in entries
        if not any(part.startswith(".") or part == FOREIGN for part in name.split("/"))
    ]
    names = [member.name for member in members]
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{path} has {twice[0]!r} twice")
    return members


def _list_tar(path: Path, archive_bytes: int) -> Iterator[tuple[str, str, int, int]]:
    with tarfile.open(path, "r:") as archive:
        for entry in archive:
            name = _safe_name(path, entry.name)
            if entry.isdir():
                continue
            if not entry.isreg() or entry.issparse():
                kind = "a link" if entry.issym() or entry.islnk() else "neither a file nor a folder"
                raise _refusal(path, entry.name, f"is {kind}")
            if entry.offset_data + entry.size > archive_bytes:
                raise ValueError(f"{path} is damaged: it ends within {entry.name!r}")
            yield name, entry.name, entry.size, entry.offset_data
        _check_end(path, archive.offset)


def _check_end(path: Path, offset: int) -> None:
    """Raise ValueError unless nothing but zeros follows the last member: tarfile takes damaged headers for the end."""
    with path.open("rb") as file:
        file.seek(offset)
        block = file.read(END_BYTES)
        if len(block) < END_BYTES and not any(block):
            raise ValueError(
                f"{path} is damaged: it has no end, as if it were cut; if it is complete, "
                f"`tar --append --file {path.name} --files-from /dev/null` adds one"
            )
        while block:
            if any(block):
                raise ValueError(f"{path} is damaged: what follows byte {offset} is neither a member nor the end")
            block = file.read(COPY_SIZE)


def _list_zip(path: Path, archive_bytes: int) -> Iterator[tuple[str, str, int, int]]:
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            name = _safe_name(path, entry.filename)
            if entry.is_dir():
                continue
            if (kind := stat.S_IFMT(entry.external_attr >> 16)) not in (0, stat.S_IFREG):
                raise _refusal(path, entry.filename, "is a link" if kind == stat.S_IFLNK else "is not a file")
            if entry.flag_bits & 1:
                raise _refusal(path, entry.filename, "is encrypted")
            if entry.file_size > max(MAX_TEXT, MAX_RATIO * entry.compress_size):
                raise _refusal(path, entry.filename, f"is said to have {entry.file_size} bytes, too many to be true")
            if not 0 <= entry.header_offset < archive_bytes:
                raise ValueError(f"{path} is damaged: {entry.filename!r} does not begin within it")
            yield name, entry.filename, entry.file_size, -1


def _safe_name(path: Path, name: str) -> str:
    """Return a name without `./` and `//`; ValueError if it leads out of the archive."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\0" in name:
        raise _refusal(path, name, "is a path that leads out of the archive")
    return relative.as_posix()


def _refusal(path: Path, name: str, reason: str) -> ValueError:
    return ValueError(f"{path} is refused: its member {name!r} {reason}; unpack what you trust and give the folder")


def read_member(path: Path, member: Member) -> bytes:
    """Return the bytes of a small member; ValueError if it is damaged, or larger than a label or JSON file is."""
    if member.num_bytes > MAX_TEXT:
        raise ValueError(f"{path}: {member.name!r} has {member.num_bytes} bytes, too many for labels of a video")
    with open_member(path, member) as file:
        return file.read(member.num_bytes)


def copy_member(path: Path, member: Member, target: Path) -> None:
    """Copy a member to a new file with the archive's modification time; ValueError if it is damaged."""
    with target.open("xb") as copy:
        for block in _read_blocks(path, member):
            copy.write(block)
    os.utime(target, ns=(member.archive_mtime_ns, member.archive_mtime_ns))


def member_sha256(path: Path, member: Member) -> str:
    """Return the SHA-256 of a member's bytes, as hexadecimal text."""
    digest = hashlib.sha256()
    for block in _read_blocks(path, member):
        digest.update(block)
    return digest.hexdigest()


def _read_blocks(path: Path, member: Member) -> Iterator[bytes]:
    """Yield as many bytes as the member was listed with, never more."""
    left = member.num_bytes
    with open_member(path, member) as file:
        while left and (block := file.read(min(COPY_SIZE, left))):
            yield block
            left -= len(block)
    if left:
        raise ValueError(f"{path} ends within {member.name!r}")


@contextmanager
def open_member(path: Path, member: Member) -> Iterator[IO[bytes]]:
    """Open a member for reading; ValueError if the archive is another one than when it was listed, or damaged."""
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (member.archive_bytes, member.archive_mtime_ns):
            raise ValueError(f"{path} was changed since it was listed; run the same command again")
        if member.offset >= 0:
            file.seek(member.offset)
            yield file
            return
        try:
            archive = _opened_zip(path, member.archive_bytes, member.archive_mtime_ns)
            with archive.open(member.entry) as inner:
                yield inner
        except (zipfile.BadZipFile, NotImplementedError, EOFError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{path}: {member.name!r} is damaged: {error}") from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"{path}: {member.name!r} is damaged: {error}") from None  # bz2 says it so


@lru_cache(maxsize=4)
def _opened_zip(path: Path, archive_bytes: int, mtime_ns: int) -> zipfile.ZipFile:
    """Return an open archive: its directory is read once per process, not once per member."""
    return zipfile.ZipFile(path)
