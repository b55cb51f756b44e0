"""Copies among generated videos: found by their pictures, with their times, and told from videos of the same place."""

from collections.abc import Callable
from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray

from covid_cmsf.search import duplicates as duplicates_module
from covid_cmsf.search.alignment import RATE, DescribedVideo, align, describe
from covid_cmsf.search.duplicates import (
    Duplicate,
    find_duplicates,
    group_copies,
    keep_thumbnails,
    propose_by_pictures,
    propose_pairs,
    search_duplicates,
)
from covid_cmsf.search.index import IndexedVideo, SearchIndex, WindowSet
from covid_cmsf.search.thumbnails import make_thumbnails, thumbnail_frames

Frames = NDArray[np.uint8]
FPS = 25.0
SECONDS = 6


def make_video(place: int, motion: int, seconds: float = SECONDS) -> Frames:
    """A random texture and a disk that wanders over it: `place` draws the texture, `motion` the path."""
    rng = np.random.default_rng(place)
    background = cv2.resize(rng.integers(0, 255, (6, 8, 3), dtype=np.uint8), (96, 72), interpolation=cv2.INTER_CUBIC)
    times = np.arange(int(seconds * FPS)) / FPS
    phases, speeds = np.random.default_rng([7, motion]).uniform(0.3, 1.2, (2, 4))
    frames = []
    for time in times:
        x = 48 + 30 * np.sin(2 * np.pi * (speeds[0] * time + phases[0])) * np.cos(speeds[1] * time)
        y = 36 + 22 * np.sin(2 * np.pi * (speeds[2] * time + phases[2])) * np.cos(speeds[3] * time)
        frame = background.copy()
        cv2.circle(frame, (int(x), int(y)), 12, (250, 250, 240), -1)
        frames.append(frame)
    noise = np.random.default_rng([place, motion]).normal(0, 2, (len(frames), 72, 96, 3))
    return np.clip(np.stack(frames) + noise, 0, 255).astype(np.uint8)


def thumbnails_of(frames: Frames) -> NDArray[np.uint8]:
    return make_thumbnails(frames[thumbnail_frames(len(frames), FPS)])


def all_anchors(first: DescribedVideo, second: DescribedVideo) -> list[tuple[int, int]]:
    return [(i, j) for i in range(0, len(first), 6) for j in range(0, len(second), 6)]


CHANGES: dict[str, Callable[[Frames], Frames]] = {
    "none": lambda frames: frames,
    "noise and contrast": lambda frames: np.clip(frames * 0.6 + 30, 0, 255).astype(np.uint8),
    "mirrored": lambda frames: frames[:, :, ::-1],
    "cropped": lambda frames: frames[:, 7:-7, 10:-10],
    "cropped at a corner": lambda frames: frames[:, :-18, 24:],
    "black bars": lambda frames: np.pad(frames, ((0, 0), (12, 12), (0, 0), (0, 0))),
    "faster": lambda frames: frames[np.arange(0, len(frames), 1.25).astype(int)],
    "slower": lambda frames: frames[np.arange(0, len(frames) - 1, 0.8).astype(int)],
    "between two speeds": lambda frames: frames[np.arange(0, len(frames) - 1, 0.7).astype(int)],
}
SPEEDS = {"faster": 0.8, "slower": 1.25, "between two speeds": 1 / 0.7}


@pytest.mark.parametrize("change", list(CHANGES))
def test_a_changed_copy_matches_for_most_of_its_length(change: str) -> None:
    video = make_video(1, 1)
    first, second = (DescribedVideo(thumbnails_of(one)) for one in (video, CHANGES[change](video)))
    part = align(first, second, all_anchors(first, second))
    assert part.share(len(first), len(second)) > 0.8
    assert part.mirrored == (change == "mirrored")
    assert part.speed == pytest.approx(SPEEDS.get(change, 1.0), rel=0.02)


def test_another_motion_at_the_same_place_is_no_copy() -> None:
    first, second = (DescribedVideo(thumbnails_of(make_video(1, motion))) for motion in (1, 2))
    assert align(first, second, all_anchors(first, second)).share(len(first), len(second)) < 0.4


def test_a_still_video_is_compared_by_its_picture() -> None:
    still = np.repeat(make_video(3, 1)[:1], 50, axis=0)
    first, second = (DescribedVideo(thumbnails_of(one)) for one in (still, still[:, 4:-4, 5:-5]))
    assert align(first, second, [(2, 2)]).share(len(first), len(second)) == 1.0


def test_a_part_is_found_with_its_times() -> None:
    long = np.concatenate([make_video(4, 4, 4), make_video(1, 1), make_video(5, 5, 3)])
    first, second = DescribedVideo(thumbnails_of(long)), DescribedVideo(thumbnails_of(make_video(1, 1)))
    part = align(first, second, all_anchors(first, second))
    assert part.first[0] / RATE == pytest.approx(4, abs=0.5) and part.first[1] / RATE == pytest.approx(10, abs=0.5)
    assert part.share(len(first), len(second)) > 0.8


def test_descriptors_have_mean_0_and_unit_length() -> None:
    described = describe(thumbnails_of(make_video(1, 1)), (0.1, 0.2, 0.7), mirror=True)
    for values in (described.pictures, described.changes):
        np.testing.assert_allclose(values.mean(1), 0, atol=1e-6)
        np.testing.assert_allclose(np.linalg.norm(values, axis=1), 1, atol=1e-5)
    assert described.moving.any()


def make_index(videos: list[Frames]) -> SearchIndex:
    """Windows of one second whose vector is the mean thumbnail: alike where the place is the same."""
    rows = tuple(IndexedVideo(f"v{i}", f"v{i}", "", len(one), FPS) for i, one in enumerate(videos))
    vectors, numbers, starts = [], [], []
    for number, frames in enumerate(videos):
        for start in range(0, len(frames) - 24, 25):
            vectors.append(make_thumbnails(frames[start : start + 25 : 5]).mean(0).ravel() - 128)
            numbers.append(number)
            starts.append(start)
    values = F.normalize(torch.tensor(np.array(vectors), dtype=torch.float32), dim=1)
    windows = WindowSet(values, torch.zeros(values.shape[1]), torch.tensor(numbers), torch.tensor(starts), 25, {})
    return SearchIndex(rows, {"rgb": windows})


def duplicates_of(videos: list[Frames]) -> list[Duplicate]:
    return find_duplicates(propose_pairs(make_index(videos)), lambda number: thumbnails_of(videos[number]))


def test_copies_parts_and_shared_intros_are_told_apart() -> None:
    intro = make_video(9, 9, 2)
    videos = [
        make_video(1, 1),
        make_video(1, 2),  # the same place
        make_video(1, 1)[:, 4:-4, 5:-5],  # a copy of 0
        np.concatenate([make_video(4, 4, 4), make_video(2, 3)]),
        make_video(2, 3),  # a part of 3
        np.concatenate([intro, make_video(5, 5)]),
        np.concatenate([intro, make_video(6, 6)]),  # another video with the intro of 5
    ]
    found = {(one.first, one.second): one for one in duplicates_of(videos)}
    assert {pair: one.kind for pair, one in found.items() if one.kind != "shared"} == {
        (0, 2): "copy",
        (3, 4): "contained",
    }
    assert found[3, 4].first_part[0] == pytest.approx(4, abs=0.5)
    assert found[5, 6].kind == "shared" and found[5, 6].first_part[1] == pytest.approx(2, abs=0.5)
    assert group_copies(found.values()) == [[0, 2], [3, 4]]


def test_pictures_propose_what_embeddings_do_not() -> None:
    videos = [make_video(place, place, 3) for place in (1, 2, 3, 4)]
    videos += [videos[1][:, :-18, 24:], videos[3][:, ::, ::-1]]  # a corner, and mirrored
    index = make_index(videos)
    shuffled = index.windows["rgb"].vectors[torch.randperm(18, generator=torch.Generator().manual_seed(0))]
    index = replace(index, windows={"rgb": replace(index.windows["rgb"], vectors=shuffled)})
    proposed = propose_by_pictures(lambda number: thumbnails_of(videos[number]), range(6))
    assert {(1, 4), (3, 5)} <= proposed.keys() and len(proposed) < 15
    found = search_duplicates(index, lambda number: thumbnails_of(videos[number]))
    assert {(one.first, one.second) for one in found if one.kind == "copy"} == {(1, 4), (3, 5)}


def test_thumbnails_are_read_once_as_far_as_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def thumbnails(number: int) -> NDArray[np.uint8]:
        read.append(number)
        return np.zeros((2, 10, 5), np.uint8)

    monkeypatch.setattr(duplicates_module, "KEPT_BYTES", 250)
    kept = keep_thumbnails(thumbnails)
    for number in (0, 1, 2, 0, 1, 2):
        kept(number)
    assert read == [0, 1, 2, 2]


def test_progress_is_told_after_every_pair_and_an_unknown_modality_is_refused() -> None:
    videos = [make_video(1, 1, 2), make_video(2, 2, 2), make_video(3, 3, 2)]
    pairs = propose_pairs(make_index(videos))
    calls: list[int] = []
    find_duplicates(pairs, lambda number: thumbnails_of(videos[number]), on_pair=lambda: calls.append(1))
    assert len(calls) == len(pairs) == 3
    with pytest.raises(ValueError, match="no 'flow'; choose from rgb"):
        propose_pairs(make_index(videos), "flow")


def test_clips_of_a_still_scene_are_copies_only_if_they_have_the_same_length() -> None:
    def still(seconds: float, seed: int) -> NDArray[np.uint8]:
        frames = np.repeat(make_video(3, 0)[:1], int(seconds * FPS), axis=0)
        noise = np.random.default_rng(seed).normal(0, 0.5, frames.shape)
        return thumbnails_of(np.clip(frames + noise, 0, 255).astype(np.uint8))

    videos = [still(6, 0), still(6, 1), still(4, 2)]
    pairs = {(0, 1): [(5, 5)], (0, 2): [(5, 5)], (1, 2): [(5, 5)]}
    kinds = {(one.first, one.second): one.kind for one in find_duplicates(pairs, videos.__getitem__)}
    assert kinds == {(0, 1): "copy", (0, 2): "shared", (1, 2): "shared"}


def test_clips_of_one_scene_in_which_little_moves_are_no_copies() -> None:
    def quiet(motion: int, begin: float, seconds: float) -> NDArray[np.uint8]:
        """A still background; for one second something passes."""
        frames = np.repeat(make_video(3, 0)[:1], int(seconds * FPS), axis=0)
        passing = slice(int(begin * FPS), int((begin + 1) * FPS))
        frames[passing] = make_video(3, motion)[: int(FPS)]
        return thumbnails_of(frames)

    videos = [quiet(1, 1, 6), quiet(2, 3.5, 6), quiet(1, 1, 6)[:25]]  # the last is a part of the first
    pairs = {(0, 1): [(5, 5)], (0, 2): [(5, 5)], (1, 2): [(5, 5)]}
    kinds = {(one.first, one.second): one.kind for one in find_duplicates(pairs, videos.__getitem__)}
    assert kinds.pop((0, 2)) in ("copy", "contained")
    assert set(kinds.values()) == {"shared"}
