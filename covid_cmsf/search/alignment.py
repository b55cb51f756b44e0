"""Compare the pictures of two videos: which part of one is a copy of which part of the other?

Embeddings say that two videos are alike; a copy shows the same pixels at the same time. Videos are compared as gray
thumbnails, `RATE` per second. Two frames match if their pictures correlate and, where something moves, their changes
since the last thumbnail correlate too: clips of one camera have the same background but other motion. The second video
may be cropped, mirrored, faster or slower, and hold only a part of the first.
"""

# S thumbnails of a video, E = THUMBNAIL_SIZE, P = values of a descriptor

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

RATE = 5.0  # thumbnails per second
THUMBNAIL_SIZE = 24  # pixels, height and width
DESCRIPTOR_SIZE = 12
SPEEDS = (1.0, 0.5, 2 / 3, 0.75, 0.8, 0.9, 1.1, 1.25, 4 / 3, 1.5, 2.0)
MAX_SHIFT = 5
SHIFTS = sorted(range(-MAX_SHIFT, MAX_SHIFT + 1), key=abs)  # thumbnails around the proposed position
FINE_SHIFTS = (0.0, -0.5, 0.5)
LOCAL = 12  # thumbnails on either side of the proposed position that select crop, mirroring, speed and shift
MIN_LOCAL = 5
FOLLOWED = 8  # lines that are followed through both videos
REFINEMENTS = (0.04, 0.02, 0.01)  # relative changes of the speed that are tried around the best line
MATCH = 0.7  # frames whose similarity is above this are copies
PLAUSIBLE = 0.6  # correlation of two pictures below which no copy is looked for
STILL = 1.0  # gray levels: a smaller change between thumbnails is noise
ROUNDING = 0.2  # gray levels: that of thumbnails, averaged over the pixels of a descriptor's value
Crop = tuple[float, float, float]  # top, left, edge; in shares of the picture
FULL: Crop = (0.0, 0.0, 1.0)
CROPS: tuple[Crop, ...] = (
    FULL,
    *(((1 - edge) / 2, (1 - edge) / 2, edge) for edge in (0.9, 0.8, 0.7)),
    *((top, left, edge) for edge in (0.85, 0.75, 0.65) for top in (0.0, 1 - edge) for left in (0.0, 1 - edge)),
)


@dataclass(frozen=True)
class Alignment:
    """The longest matching part of two videos, in thumbnails; empty if nothing matches."""

    similarity: float  # mean over the part, 0 to 1
    first: tuple[int, int]  # start and end (exclusive) in the first video
    second: tuple[int, int]
    speed: float  # thumbnails of the second per thumbnail of the first
    mirrored: bool
    crops: tuple[Crop, Crop] = (FULL, FULL)  # of the first and of the second video

    def evidence(self) -> float:
        """Return how much speaks for a copy: the sum over the part of (similarity - MATCH)."""
        return (self.similarity - MATCH) * (self.first[1] - self.first[0])

    def share(self, num_first: int, num_second: int) -> float:
        """Return the share of the shorter video that the matching part covers."""
        lengths = (self.first[1] - self.first[0]) / num_first, (self.second[1] - self.second[0]) / num_second
        return max(lengths)


NOTHING = Alignment(0.0, (0, 0), (0, 0), 1.0, False)


@dataclass(frozen=True)
class Descriptors:
    """What is compared per thumbnail: its picture and its change, (S, P) each with mean 0 and unit length."""

    pictures: Floats
    changes: Floats
    moving: NDArray[np.bool_]  # (S,)


def describe(thumbnails: Bytes | Floats, crop: Crop = FULL, *, mirror: bool = False) -> Descriptors:
    """Describe gray thumbnails (S, E, E), cropped and mirrored."""
    flat = _shrink(thumbnails, crop, mirror=mirror)
    changes = np.diff(flat, axis=0, prepend=flat[:1])
    if len(changes) > 1:
        changes[0] = changes[1]
    return Descriptors(_standardize(flat), _standardize(changes), np.sqrt((changes**2).mean(1)) > STILL)


VARIANTS: tuple[tuple[Crop, Crop, bool], ...] = (  # crop of the first video, crop of the second, mirrored
    *((crop, FULL, mirrored) for crop in CROPS for mirrored in (False, True)),
    *((FULL, crop, mirrored) for crop in CROPS[1:] for mirrored in (False, True)),
)


class DescribedVideo:
    """Thumbnails of a video (S, E, E) with the descriptors of every crop, computed when they are first needed."""

    def __init__(self, thumbnails: Bytes) -> None:
        self.thumbnails = thumbnails
        self._descriptors: dict[tuple[Crop, bool], Descriptors] = {}

    def __len__(self) -> int:
        return len(self.thumbnails)

    def get(self, crop: Crop, *, mirrored: bool = False) -> Descriptors:
        """Return the descriptors of one crop."""
        if (crop, mirrored) not in self._descriptors:
            self._descriptors[crop, mirrored] = describe(self.thumbnails, crop, mirror=mirrored)
        return self._descriptors[crop, mirrored]


def align(first: DescribedVideo, second: DescribedVideo, anchors: list[tuple[int, int]]) -> Alignment:
    """Return the best alignment near one of the `anchors`, pairs of thumbnails that may show the same moment.

    Around every anchor all crops, speeds and shifts are compared; the best of them are followed through both videos,
    and the longest and surest match is returned.
    """
    candidates: list[tuple[float, tuple[Crop, Crop, bool], tuple[int, int], float, int]] = []
    speeds, shifts = (grid.reshape(-1, 1) for grid in np.meshgrid(SPEEDS, SHIFTS, indexing="ij"))
    reach = math.ceil(LOCAL * max(SPEEDS)) + MAX_SHIFT
    fewest = min(MIN_LOCAL, len(first), len(second))
    for anchor in anchors:
        if not _plausible(first, second, anchor):
            continue
        i = np.arange(max(0, anchor[0] - LOCAL), min(len(first), anchor[0] + LOCAL + 1))  # (n,)
        j = np.rint(anchor[1] + shifts + speeds * (i - anchor[0])).astype(np.int64)  # (lines, n)
        window = slice(max(0, anchor[1] - reach), min(len(second), anchor[1] + reach + 1))
        inside = (j >= window.start) & (j < window.stop)
        similarity = np.stack(
            [
                _similarity(first.get(a), second.get(b, mirrored=mirrored), slice(i[0], i[-1] + 1), window)
                for a, b, mirrored in VARIANTS
            ]
        )  # (variants, n, m)
        values = similarity[:, np.arange(len(i)), np.clip(j - window.start, 0, window.stop - window.start - 1)]
        counts = inside.sum(1)
        means = (values * inside).sum(-1) / np.maximum(counts, 1)
        scores = np.where(counts >= fewest, means, -1.0)  # (variants, lines)
        variant, line = np.unravel_index(scores.argmax(), scores.shape)
        best = float(scores[variant, line])
        candidates.append((best, VARIANTS[variant], anchor, float(speeds[line, 0]), int(shifts[line, 0])))
    candidates.sort(key=lambda candidate: -candidate[0])
    followed = [(_follow(first, second, *one[1:]), one[1]) for one in candidates[:FOLLOWED]]
    found, crops = max(followed, key=lambda pair: pair[0].evidence(), default=(NOTHING, VARIANTS[0]))
    return _refine_speed(first, second, crops, found)


def compare_motion(first: DescribedVideo, second: DescribedVideo, part: Alignment) -> float | None:
    """Return the correlation of what moves in the matching part, -1 to 1; None if nothing moves.

    Clips of one still scene match at any time and speed, because their backgrounds do. So the background, the mean of
    every pixel over the part, is subtracted, and all pixels and times are correlated at once; then the same for the
    changes between thumbnails, which a slow drift of the light does not make alike. The smaller of the two is returned.
    Where hardly anything moves, the line that was found is arbitrary: that from start to end of both is tried as well.
    """
    # Not from end to end of the part: these are rounded, which bends a short line.
    steps = np.arange(*part.first, dtype=np.float64) - (part.first[0] + part.first[1] - 1) / 2
    line = (part.second[0] + part.second[1] - 1) / 2 + part.speed * steps
    amount, best = _compare_along(first, second, part, np.arange(*part.first), line)
    if amount < STILL:
        whole = np.linspace(0, len(second) - 1, len(first))
        amount, other = _compare_along(first, second, part, np.arange(len(first)), whole)
        best = max(best, other)
    return best if amount > ROUNDING else None


def _compare_along(
    first: DescribedVideo, second: DescribedVideo, part: Alignment, i: NDArray[np.int64], line: NDArray[np.float64]
) -> tuple[float, float]:
    """Return how much moves in thumbnails i of the first video, in gray levels, and its correlation with the second."""
    moving = _shrink(first.thumbnails[i], part.crops[0])
    moving -= moving.mean(0)
    motions, changes = [], []
    for shift in FINE_SHIFTS:
        positions = np.clip(line + shift, 0, len(second) - 1)
        other = _shrink(_interpolate(second.thumbnails, positions), part.crops[1], mirror=part.mirrored)
        motions.append(_correlate(moving, other - other.mean(0)))
        changes.append(_correlate(np.diff(moving, axis=0), np.diff(other, axis=0)))
    return float(np.sqrt((moving**2).mean())), min(max(motions), max(changes))


def _correlate(a: Floats, b: Floats) -> float:
    return float((a * b).sum() / max(float(np.sqrt((a**2).sum() * (b**2).sum())), 1e-6))


def _refine_speed(
    first: DescribedVideo, second: DescribedVideo, variant: tuple[Crop, Crop, bool], best: Alignment
) -> Alignment:
    """Return the best line of nearly the same speed through the middle of a match: SPEEDS are coarse."""
    if best.evidence() <= 0:
        return best
    for change in REFINEMENTS:
        middle = tuple((part[0] + part[1] - 1) // 2 for part in (best.first, best.second))
        nearby = [best.speed * (1 + sign * change) for sign in (-1, 1)]
        found = [_follow(first, second, variant, (middle[0], middle[1]), speed, 0) for speed in nearby]
        best = max(best, *found, key=Alignment.evidence)
    return best


def _plausible(first: DescribedVideo, second: DescribedVideo, anchor: tuple[int, int]) -> bool:
    """Whether the picture at the anchor is like one within SHIFTS of it, for any crop: fast, and false for most."""
    near = slice(max(0, anchor[1] - MAX_SHIFT), anchor[1] + MAX_SHIFT + 1)
    return any(
        float((second.get(b, mirrored=mirrored).pictures[near] @ first.get(a).pictures[anchor[0]]).max()) > PLAUSIBLE
        for a, b, mirrored in VARIANTS
    )


def _similarity(a: Descriptors, b: Descriptors, rows: slice, columns: slice) -> Floats:
    """Return the (n, m) similarities of thumbnails a[rows] and b[columns]."""
    pictures = a.pictures[rows] @ b.pictures[columns].T
    changes = a.changes[rows] @ b.changes[columns].T
    still = ~a.moving[rows, None] & ~b.moving[columns]
    similarity: Floats = np.where(still, pictures, (pictures + changes) / 2)
    return similarity


def _follow(
    first: DescribedVideo,
    second: DescribedVideo,
    variant: tuple[Crop, Crop, bool],
    anchor: tuple[int, int],
    speed: float,
    shift: int,
) -> Alignment:
    """Follow a line through both videos; return the part whose sum of (similarity - MATCH) is largest."""
    a = first.get(variant[0])
    found = []
    for fine_shift in FINE_SHIFTS:
        i = np.arange(len(first))
        j = anchor[1] + shift + fine_shift + speed * (i - anchor[0])
        inside = (j >= -0.5) & (j <= len(second) - 0.5)
        i, j = i[inside], np.clip(j[inside], 0, len(second) - 1)
        if len(i) == 0:
            continue
        # The second video on the time axis of the first: then changes are over the same time as well.
        b = describe(_interpolate(second.thumbnails, j), variant[1], mirror=variant[2])
        pictures, changes = (a.pictures[i] * b.pictures).sum(1), (a.changes[i] * b.changes).sum(1)
        similarity = np.where(~a.moving[i] & ~b.moving, pictures, (pictures + changes) / 2)
        found.append(_matching_part(similarity, i, j, speed=speed, variant=variant))
    return max(found, key=Alignment.evidence, default=NOTHING)


def _matching_part(
    similarity: Floats,
    i: NDArray[np.int64],
    j: NDArray[np.float64],
    *,
    speed: float,
    variant: tuple[Crop, Crop, bool],
) -> Alignment:
    sums = np.concatenate([[0.0], np.cumsum(similarity - MATCH)])
    end = int((sums - np.minimum.accumulate(sums)).argmax())
    if end == 0:
        return NOTHING
    start = int(sums[: end + 1].argmin())
    return Alignment(
        similarity=float(similarity[start:end].mean()),
        first=(int(i[start]), int(i[end - 1]) + 1),
        second=(round(float(j[start])), round(float(j[end - 1])) + 1),
        speed=speed,
        mirrored=variant[2],
        crops=variant[:2],
    )


def _interpolate(thumbnails: Bytes, positions: NDArray[np.float64]) -> Floats:
    """Return the thumbnails at fractional positions, between 0 and the last."""
    low = np.floor(positions).astype(np.int64)
    high = np.minimum(low + 1, len(thumbnails) - 1)
    weight = (positions - low).astype(np.float32)[:, None, None]
    mixed: Floats = (1 - weight) * thumbnails[low] + weight * thumbnails[high]
    return mixed


def _shrink(thumbnails: Bytes | Floats, crop: Crop, *, mirror: bool = False) -> Floats:
    """Return the gray levels (S, P) of a crop, P = DESCRIPTOR_SIZE squared."""
    rows, columns = (_resize_matrix(thumbnails.shape[axis], crop[axis - 1], crop[2]) for axis in (1, 2))
    small = np.einsum("pe,sef,qf->spq", rows, thumbnails.astype(np.float32), columns, optimize=True)
    flat: Floats = (small[:, :, ::-1] if mirror else small).reshape(len(small), -1)
    return flat


def _standardize(values: Floats) -> Floats:
    centered = values - values.mean(1, keepdims=True)
    unit: Floats = centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-6)
    return unit


@cache
def _resize_matrix(size: int, start: float, edge: float) -> Floats:
    """Return the (DESCRIPTOR_SIZE, size) matrix that averages the pixels of [start, start + edge) of an axis."""
    bounds = (start + edge * np.linspace(0, 1, DESCRIPTOR_SIZE + 1)) * size
    pixels = np.arange(size)
    overlap = np.minimum(bounds[1:, None], pixels + 1) - np.maximum(bounds[:-1, None], pixels)
    overlap = np.clip(overlap, 0, None)
    weights: Floats = (overlap / overlap.sum(1, keepdims=True)).astype(np.float32)
    return weights
