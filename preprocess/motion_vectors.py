"""Motion vectors of the video file itself: motion for the cost of decoding, without any optical flow.

For most blocks of a frame a codec stores where they are copied from: in an earlier or, for B-frames, a later frame.
Divided by the distance to that frame this is the motion per frame; drawn block by block it has the shape of optical
flow. It is coarse, and sometimes wrong: an encoder looks for the cheapest copy, not for the motion (Wu et al.,
"Compressed Video Action Recognition", CVPR 2018, train on it).

    with MotionReader(path) as reader:
        for motion in reader.motion():   # float32 (2, H, W), pixels, x first: from each frame to the next
            ...

What is not known: FFmpeg says only whether a block comes from the past or the future. It is taken to come from the
nearest frame there that is not a B-frame; H.264 with several references (`refs`, pyramids of B-frames) may have used
another one, and the motion is then too fast or too slow. A frame without vectors (a key frame) repeats the motion of
the frame before; blocks without a vector have no motion. B-frames of MPEG-4 part 2 (XviD), whose vectors FFmpeg does
not give, move as the reference after them. Blocks are drawn where they are in the second frame of a pair.
Shapes: N vectors, H x W pixels.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from covid_cmsf.clips.decoders import AvReader

Motion = NDArray[np.float32]  # (2, H, W)
EXPORT_VECTORS = 1 << 28  # FFmpeg's AV_CODEC_FLAG2_EXPORT_MVS
CELL = 4  # pixels; positions and sizes of blocks are multiples of it
B_TYPES = (3, 7)  # of FFmpeg's AVPictureType: B and BI
MAX_WAITING = 32  # B-frames in a row; more are a damaged file


@dataclass(frozen=True)
class CodedFrame:
    """A decoded frame: its time, and the motion since its predecessor in the file."""

    number: int  # in the order of display, from the first decoded frame on
    pts: int | None
    key_frame: bool
    rotation: int
    motion: Motion  # pixels per frame, not yet rotated


class MotionReader(AvReader):
    """An open video file whose motion vectors are read. Use it in a `with` block."""

    has_vectors = False  # whether some frame that was decoded so far has vectors
    codec = ""

    def _open(self) -> None:
        super()._open()
        self.codec = self._stream.codec_context.name
        self._stream.codec_context.flags2 |= EXPORT_VECTORS

    def motion(self, *, start: float = 0.0, end: float = math.inf, fps: float = 0.0) -> Iterator[Motion]:
        """Yield the motion from each frame of `frames(...)` to the next, float32 (2, H, W) in pixels, rotated upright.

        Where `fps` leaves frames out, all of them are taken to move like the second one of the pair; between a frame
        and its repetition there is no motion. Without any vectors (`has_vectors` is then still False) it is 0.
        """
        previous: CodedFrame | None = None
        for frame in self._choose(self._decode_motion, start=start, end=end, fps=fps):
            if previous is not None:
                yield rotate(frame.motion * np.float32(frame.number - previous.number), frame.rotation // 90)
            previous = frame

    def _decode_motion(self) -> Iterator[CodedFrame]:
        motion: Motion | None = None
        waiting: list[tuple[int, av.VideoFrame]] = []
        for number, (frame, past, future) in enumerate(with_distances(self._decode())):
            waiting.append((number, frame))
            if self.codec == "mpeg4" and int(frame.pict_type) in B_TYPES:
                continue  # FFmpeg exports zeros: it moves as the reference after it, whose vectors span both
            vectors = frame.side_data.get("MOTION_VECTORS")
            if vectors is not None:
                motion = draw_motion(vectors.to_ndarray(), frame.height, frame.width, past=past, future=future)
                self.has_vectors = True
            elif motion is None or motion.shape[1:] != (frame.height, frame.width):
                motion = np.zeros((2, frame.height, frame.width), np.float32)
            yield from _coded(waiting, motion)
            waiting = []
        if motion is not None:
            yield from _coded(waiting, motion)


def _coded(frames: Iterable[tuple[int, av.VideoFrame]], motion: Motion) -> Iterator[CodedFrame]:
    for number, one in frames:
        yield CodedFrame(number, one.pts, one.key_frame, one.rotation, motion)


def with_distances(frames: Iterable[av.VideoFrame]) -> Iterator[tuple[av.VideoFrame, int, int]]:
    """Yield each frame with the distances to the nearest frames before and after it that are not B-frames."""
    waiting: list[av.VideoFrame] = []  # B-frames whose next reference is not yet known
    past = 1  # distance of the first waiting frame, or else of the next frame, from the last reference
    for frame in frames:
        if int(frame.pict_type) in B_TYPES and len(waiting) < MAX_WAITING:
            waiting.append(frame)
            continue
        for index, one in enumerate(waiting):
            yield one, past + index, len(waiting) - index
        yield frame, past + len(waiting), 1
        waiting, past = [], 1
    for index, one in enumerate(waiting):
        yield one, past + index, len(waiting) - index


def draw_motion(vectors: NDArray[Any], height: int, width: int, *, past: int, future: int) -> Motion:
    """Return the motion (2, H, W) in pixels per frame; a block with several vectors has their mean.

    Args:
        vectors: (N,), with FFmpeg's fields of AVMotionVector.
        height: of the frame.
        width: of the frame.
        past: distance in frames to the frame that blocks are copied from, if it is an earlier one.
        future: the same for a later one.
    """
    # The vector points from the block to its source: against the motion if that is earlier, along it if later.
    per_frame = np.where(vectors["source"] < 0, -1.0 / past, 1.0 / future) / np.maximum(vectors["motion_scale"], 1)
    values = np.stack([vectors["motion_x"] * per_frame, vectors["motion_y"] * per_frame, np.ones(len(vectors))])
    rows, columns = -(-height // CELL), -(-width // CELL)
    # Not the 16 bits of FFmpeg's positions: places in a large frame do not fit into them.
    y, x = (vectors[name].astype(np.int64) for name in ("dst_y", "dst_x"))
    top, left = (y - vectors["h"] // 2) // CELL, (x - vectors["w"] // 2) // CELL
    bottom, right = top + vectors["h"] // CELL, left + vectors["w"] // CELL
    top, bottom = np.clip(top, 0, rows), np.clip(bottom, 0, rows)
    left, right = np.clip(left, 0, columns), np.clip(right, 0, columns)
    # Sums over blocks of any size: add at their corners, then integrate over both axes.
    corners = np.stack([y * (columns + 1) + x for y in (top, bottom) for x in (left, right)])  # (4, N)
    size = (rows + 1) * (columns + 1)
    signed = values[:, None] * np.array([1, -1, -1, 1])[:, None]  # (3, 4, N)
    places = corners + size * np.arange(3)[:, None, None]
    steps = np.bincount(places.ravel(), signed.ravel(), minlength=3 * size)
    sums = steps.reshape(3, rows + 1, columns + 1).cumsum(1).cumsum(2)[:, :rows, :columns]
    cells = np.where(sums[2] > 0.5, sums[:2] / np.maximum(sums[2], 1), 0).astype(np.float32)
    return cells.repeat(CELL, 1).repeat(CELL, 2)[:, :height, :width]


def rotate(motion: Motion, quarters: int) -> Motion:
    """Rotate the picture and its vectors counter-clockwise by quarter turns."""
    for _ in range(quarters % 4):
        x, y = np.rot90(motion, axes=(1, 2))
        motion = np.stack([y, -x])  # right becomes up, and y points down
    return motion
