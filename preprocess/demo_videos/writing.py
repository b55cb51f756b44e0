"""Files of a demo set: encoded videos and the official lists. A file has its name only when it is whole.

# T frames, H W pixels
"""

import io
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.atomic import atomic_path

QUANTIZER = 3  # of 1 (best) to 31: the eye sees no blocks
LAMBDA = 118  # FFmpeg's FF_QP2LAMBDA: its unit of `global_quality`


def encode(frames: NDArray[np.uint8], fps: int) -> bytes:
    """An AVI file with RGB frames (T, H, W, 3) as MPEG-4 part 2, as XviD writes it; deterministic."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="avi", options={"fflags": "+bitexact"}) as container:
        stream = container.add_stream("mpeg4", rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = "yuv420p"
        stream.codec_context.codec_tag = "XVID"
        stream.codec_context.thread_count = 1
        stream.codec_context.options = {
            "flags": "+bitexact+qscale",
            "global_quality": str(QUANTIZER * LAMBDA),
            "g": "12",
        }
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return buffer.getvalue()


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, and the folders above it where they are missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_lines(path: Path, lines: list[str]) -> None:
    """Writes a list with CRLF at the end of every line, as UCF-101's lists have it."""
    write_bytes(path, "".join(f"{line}\r\n" for line in lines).encode("ascii"))
