"""Video files that are dropped on the page: limited in size, recognized by their content, and removed after use."""

import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

CHUNK = 1 << 20
SPARE = 1 << 30  # bytes of the disk that an upload leaves free
HEAD = 400  # bytes that tell the container


class ByteStream(Protocol):
    """The body of a request."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes; none at the end."""
        ...


@contextmanager
def received_file(stream: ByteStream, length: int, name: str) -> Iterator[Path]:
    """Write `length` bytes of a request to a file in a private temporary folder, which is removed afterward.

    ValueError if it is cut off, no video file, or too large for the disk.
    """
    with tempfile.TemporaryDirectory(prefix="covid-cmsf-") as folder:
        if shutil.disk_usage(folder).free < length + SPARE:
            raise ValueError(f"not enough space in {tempfile.gettempdir()} for {length / 1e6:.0f} MB")
        path = Path(folder) / f"upload{safe_suffix(name)}"
        left = length
        with path.open("wb") as file:
            while left:
                data = stream.read(min(CHUNK, left))
                if not data:
                    raise ValueError(f"the file is cut off: {left} of {length} bytes are missing")
                if left == length:
                    check_container(data[:HEAD])
                file.write(data)
                left -= len(data)
        yield path


def check_container(head: bytes) -> None:
    """Raise ValueError unless a file begins like a container of video.

    Playlists (HLS, concat) would make FFmpeg open other files and addresses, so they are never given to it.
    """
    if not is_container(head):
        raise ValueError("this is no video file: MP4, MOV, MKV, WebM, AVI, MPEG, WMV, FLV, OGG and GIF are accepted")


def is_container(head: bytes) -> bool:
    """Whether the first bytes are those of a container that holds its video in itself."""
    return (
        head[4:8] in (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip")
        or head.startswith((b"\x1aE\xdf\xa3", b"FLV\x01", b"OggS", b"GIF87a", b"GIF89a"))
        or (head.startswith(b"RIFF") and head[8:12] == b"AVI ")
        or head.startswith(b"\x30\x26\xb2\x75\x8e\x66\xcf\x11")  # ASF: WMV
        or head.startswith((b"\0\0\x01\xba", b"\0\0\x01\xb3"))  # MPEG program and video streams
        or (head[:1] == b"G" and head[188:189] == b"G" and head[376:377] == b"G")  # MPEG transport stream
    )


def safe_suffix(name: str) -> str:
    """Return the suffix of a file name if it is a plain one."""
    found = re.search(r"\.[a-z0-9]{1,5}$", name.lower())
    return found[0] if found else ""
