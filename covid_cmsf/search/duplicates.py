"""Find copies among videos: re-encoded, cropped, mirrored, faster or slower, cut out, or part of a longer video.

The embeddings propose pairs of windows, and so do pictures that are alike up to a crop, which embeddings may miss; the
pictures decide (`alignment`). Two videos that only share a part, such as an intro, are reported as such and not as
copies. So are clips of one scene whose background alone is the same: what moves must be the same too, and where nothing
moves, the length must be.
"""

# W windows, K proposals per window

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from covid_cmsf.logs import ProgressFactory, no_progress
from covid_cmsf.search.alignment import (
    CROPS,
    FULL,
    RATE,
    Bytes,
    Crop,
    DescribedVideo,
    Floats,
    align,
    compare_motion,
    describe,
)
from covid_cmsf.search.index import SearchIndex

PER_WINDOW = 10  # windows of other videos that are proposed per window
PER_PICTURE = 3  # pictures of other videos that are proposed per picture
LIKE = 0.75  # correlation of pictures that are proposed
MOMENTS = (0.25, 0.5, 0.75)  # of a video's length: its pictures that are compared with those of all others
ANCHORS = 6  # proposals per pair of videos that are looked at
KEPT_BYTES = 1 << 30  # of thumbnails
BLOCK = 512  # windows whose similarities are computed at a time
COPY_SHARE = 0.6  # of the shorter video; two clips of one scene rarely match for so long
SAME_MOTION = 0.55  # correlation of what moves; both numbers were chosen on groups 8 to 14 of ucf101-ten
SAME_LENGTH = 0.75  # a video whose matching part is less than this share of it contains the other
SHARED_SECONDS = 1.0  # a shorter match is chance
Kind = Literal["copy", "contained", "shared"]
Anchors = list[tuple[int, int]]


@dataclass(frozen=True)
class Duplicate:
    """Two videos with a common part; times in seconds.

    `copy`: the same video. `contained`: the shorter is a part of the longer. `shared`: they only share a part.
    """

    first: int  # index of the video; of a contained one the longer video is the first
    second: int
    kind: Kind
    similarity: float  # mean over the common part, 0 to 1
    share: float  # of the shorter video that is common
    first_part: tuple[float, float]
    second_part: tuple[float, float]
    speed: float  # of the second relative to the first: 2 plays twice as fast
    mirrored: bool


def search_duplicates(
    index: SearchIndex, read_thumbnails: Callable[[int], Bytes], *, progress: ProgressFactory = no_progress
) -> list[Duplicate]:
    """Return the pairs of videos of an index that have a common part, surest first.

    Args:
        index: its embeddings propose pairs; `rgb` if it has that, else its first modality.
        read_thumbnails: returns the gray thumbnails of a video, RATE per second.
        progress: `covid_cmsf.logs.progress_bar` shows a bar.
    """
    read = keep_thumbnails(read_thumbnails)
    with progress("pictures", len(index.videos)) as advance:
        pairs = propose_all(index, read, range(len(index.videos)), on_video=advance)
    with progress("pairs", len(pairs)) as advance:
        return find_duplicates(pairs, read, on_pair=advance)


def propose_all(
    index: SearchIndex,
    read_thumbnails: Callable[[int], Bytes],
    videos: Sequence[int],
    *,
    on_video: Callable[[], None] = lambda: None,
) -> dict[tuple[int, int], Anchors]:
    """Return the pairs of some videos, ascending, that embeddings or pictures propose; `rgb` if the index has it."""
    there = set(videos)
    proposed = propose_pairs(index, "rgb" if "rgb" in index.windows else next(iter(index.windows)))
    pairs = {pair: anchors for pair, anchors in proposed.items() if there.issuperset(pair)}
    for pair, anchors in propose_by_pictures(read_thumbnails, videos, on_video=on_video).items():
        pairs[pair] = [*anchors[: ANCHORS // 2], *pairs.get(pair, anchors[ANCHORS // 2 :])]
    return pairs


def find_duplicates(
    pairs: Mapping[tuple[int, int], Anchors],
    read_thumbnails: Callable[[int], Bytes],
    *,
    on_pair: Callable[[], None] = lambda: None,
) -> list[Duplicate]:
    """Return those of the proposed pairs of videos that have a common part, surest first.

    Args:
        pairs: what `propose_pairs` returns.
        read_thumbnails: returns the gray thumbnails of a video, RATE per second.
        on_pair: called after every pair.
    """
    described = lru_cache(maxsize=256)(lambda video: DescribedVideo(read_thumbnails(video)))
    found = []
    for (first, second), anchors in sorted(pairs.items()):
        duplicate = _compare(first, second, described(first), described(second), anchors)
        if duplicate is not None:
            found.append(duplicate)
        on_pair()
    return sorted(found, key=lambda one: (-one.share * one.similarity, one.first, one.second))


def keep_thumbnails(read_thumbnails: Callable[[int], Bytes]) -> Callable[[int], Bytes]:
    """Keep thumbnails in memory, up to KEPT_BYTES: they are needed twice, and reading decodes the video."""
    kept: dict[int, Bytes] = {}
    free = KEPT_BYTES

    def read(video: int) -> Bytes:
        nonlocal free
        if video in kept:
            return kept[video]
        thumbnails = read_thumbnails(video)
        if thumbnails.nbytes <= free:
            kept[video], free = thumbnails, free - thumbnails.nbytes
        return thumbnails

    return read


def propose_pairs(index: SearchIndex, modality: str = "rgb") -> dict[tuple[int, int], Anchors]:
    """Return per pair of videos (first < second) the thumbnails at the middle of their most similar windows."""
    if modality not in index.windows:
        raise ValueError(f"this index has no {modality!r}; choose from {', '.join(index.windows)}")
    windows = index.windows[modality]
    proposals: dict[tuple[int, int], list[tuple[float, int, int]]] = defaultdict(list)
    vectors, videos, starts = windows.vectors.numpy(), windows.videos.numpy(), windows.starts.numpy()
    middles = [
        int(index.videos[video].seconds(start + windows.span // 2) * RATE)
        for video, start in zip(videos.tolist(), starts.tolist(), strict=True)
    ]
    for low in range(0, len(vectors), BLOCK):
        rows = slice(low, low + BLOCK)
        similarities = vectors[rows] @ vectors.T
        similarities[videos[rows, None] == videos[None]] = -2.0
        count = min(PER_WINDOW, similarities.shape[1])
        nearest = np.argpartition(-similarities, count - 1, axis=1)[:, :count]
        for row, columns in enumerate(nearest.tolist(), start=low):
            for column in columns:
                if videos[column] == videos[row]:
                    continue  # fewer than PER_WINDOW windows of other videos
                a, b = (row, column) if videos[row] < videos[column] else (column, row)
                value = float(similarities[row - low, column])
                proposals[int(videos[a]), int(videos[b])].append((value, middles[a], middles[b]))
    return {
        pair: list(dict.fromkeys((i, j) for _, i, j in sorted(values, reverse=True)))[:ANCHORS]
        for pair, values in proposals.items()
    }


def propose_by_pictures(
    read_thumbnails: Callable[[int], Bytes], videos: Sequence[int], *, on_video: Callable[[], None] = lambda: None
) -> dict[tuple[int, int], Anchors]:
    """Return pairs of videos (first < second) with pictures that are alike, up to a crop or mirroring, and where.

    Three pictures of every video, cropped in all ways, are compared with those of all others.
    """
    if len(videos) < 2:
        return {}
    chosen, moments = [], []
    for number in videos:
        thumbnails = read_thumbnails(number)
        moments.append([int(moment * len(thumbnails)) for moment in MOMENTS])
        chosen.append(thumbnails[moments[-1]])
        on_video()
    owners = np.repeat(np.array(videos), len(MOMENTS))
    times = np.array(moments).reshape(-1)

    def pictures(crop: Crop, mirrored: bool) -> Floats:
        return np.concatenate([describe(video, crop, mirror=mirrored).pictures for video in chosen])

    whole = pictures(FULL, False)
    count = min(PER_PICTURE, len(whole))
    best: dict[tuple[int, int], float] = {}  # (row of a crop, row of a whole picture): correlation
    for crop in CROPS:
        for mirrored in (False, True):
            cropped = pictures(crop, mirrored)
            for low in range(0, len(whole), BLOCK):
                values = cropped[low : low + BLOCK] @ whole.T
                values[owners[low : low + BLOCK, None] == owners[None]] = -2.0
                nearest = np.argpartition(-values, count - 1, axis=1)[:, :count]
                for row, columns in enumerate(nearest.tolist()):
                    for column in columns:
                        if (value := float(values[row, column])) > LIKE:
                            key = (low + row, column)
                            best[key] = max(value, best.get(key, -1.0))
    proposals: dict[tuple[int, int], Anchors] = defaultdict(list)
    for row, column in sorted(best, key=lambda key: -best[key]):
        a, b = (row, column) if owners[row] < owners[column] else (column, row)
        anchors = proposals[int(owners[a]), int(owners[b])]
        if len(anchors) < ANCHORS and (int(times[a]), int(times[b])) not in anchors:
            anchors.append((int(times[a]), int(times[b])))
    return dict(proposals)


def group_copies(duplicates: Iterable[Duplicate]) -> list[list[int]]:
    """Return groups of videos that are copies or parts of each other, largest first."""
    parent: dict[int, int] = {}

    def root(video: int) -> int:
        parent.setdefault(video, video)
        while parent[video] != video:
            parent[video] = parent[parent[video]]
            video = parent[video]
        return video

    for one in duplicates:
        if one.kind != "shared":
            first, second = sorted((root(one.first), root(one.second)))
            parent[second] = first
    groups: dict[int, list[int]] = defaultdict(list)
    for video in sorted(parent):
        groups[root(video)].append(video)
    return sorted(groups.values(), key=lambda group: (-len(group), group))


def _compare(
    first: int, second: int, thumbnails: DescribedVideo, others: DescribedVideo, anchors: Anchors
) -> Duplicate | None:
    anchors = [(min(i, len(thumbnails) - 1), min(j, len(others) - 1)) for i, j in anchors]
    # A copy of the whole video shows the same at the same share of its length, whatever windows were proposed.
    anchors += [(int(moment * len(thumbnails)), int(moment * len(others))) for moment in MOMENTS]
    anchors = list(dict.fromkeys(anchors))
    part = align(thumbnails, others, anchors)
    seconds = [(part.first[0] / RATE, part.first[1] / RATE), (part.second[0] / RATE, part.second[1] / RATE)]
    shares = (
        (part.first[1] - part.first[0]) / len(thumbnails),
        (part.second[1] - part.second[0]) / len(others),
    )
    if min(end - start for start, end in seconds) < min(SHARED_SECONDS, len(thumbnails) / RATE, len(others) / RATE):
        return None
    share = max(shares)
    kind: Kind = "shared"
    motion = compare_motion(thumbnails, others, part)
    same_length = abs(len(thumbnails) - len(others)) <= 1
    if share >= COPY_SHARE and (same_length if motion is None else motion >= SAME_MOTION):
        kind = "copy" if motion is None or min(shares) >= SAME_LENGTH * share else "contained"
    longer_first = kind != "contained" or shares[0] <= shares[1]
    return Duplicate(
        first=first if longer_first else second,
        second=second if longer_first else first,
        kind=kind,
        similarity=part.similarity,
        share=share,
        first_part=seconds[0 if longer_first else 1],
        second_part=seconds[1 if longer_first else 0],
        speed=1 / part.speed if longer_first else part.speed,
        mirrored=part.mirrored,
    )
