"""Motion in real clips of UCF-101: TV-L1's backends agree and find a known flow; DIS and motion vectors go its way."""

from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.clips.decoders import open_video
from preprocess.flow import make_flow, to_gray
from preprocess.motion_vectors import MotionReader
from tests.preprocess.test_flow import distance, smooth_flow, warped_pair

pytestmark = pytest.mark.real
CENTER = np.s_[..., 60:180, 80:240]  # a quarter of a frame of UCF-101, to save time


@pytest.fixture(scope="module")
def pairs(real_videos: Path) -> np.ndarray:
    """(classes, 2, H, W): two frames from the middle of one video of each class."""
    result = []
    for folder in sorted(path for path in real_videos.iterdir() if path.is_dir()):
        video = sorted(folder.glob("*.avi"))[0]
        with open_video(video) as reader:
            frames = list(reader.frames())
        middle = len(frames) // 2
        result.append(to_gray(np.stack(frames[middle : middle + 2])))
    assert result, f"no class in {real_videos}"
    return np.stack(result)


@pytest.fixture(scope="module")
def reference(pairs: np.ndarray) -> np.ndarray:
    """OpenCV's flow of the pairs, (classes, 2, H, W)."""
    flow = make_flow("opencv")
    return np.concatenate([flow(pair) for pair in pairs])


@pytest.mark.parametrize(("backend", "limit"), [("numba", 0.002), ("numba-fast", 0.05), ("torch", 0.05)])
def test_backends_agree_with_opencv_on_real_pairs(
    backend: str, limit: float, pairs: np.ndarray, reference: np.ndarray
) -> None:
    flow = make_flow(backend)
    assert distance(np.concatenate([flow(pair) for pair in pairs]), reference) < limit


@pytest.mark.parametrize("backend", ["numba", "numba-fast", "torch"])
def test_known_flow_of_real_frames_is_found_as_well_as_by_opencv(backend: str, pairs: np.ndarray) -> None:
    height, width = pairs.shape[2:]
    truth = smooth_flow(height, width, size=2.0)
    ours, opencv = make_flow(backend), make_flow("opencv")
    errors = []
    for pair in pairs:
        warped = np.ascontiguousarray(warped_pair(pair[1], truth)[CENTER])
        errors.append([distance(flow(warped)[0], truth[CENTER]) for flow in (ours, opencv)])
    mean, reference = np.mean(errors, axis=0)
    assert reference < 1.0
    assert mean < 1.01 * reference + 0.001


def same_direction(found: np.ndarray, reference: np.ndarray) -> float:
    """Mean cosine of two fields (T, 2, H, W) over the pixels that both see move by a pixel at least."""
    first, second = (np.moveaxis(field, 1, 0).reshape(2, -1) for field in (found, reference))
    lengths = np.hypot(*first), np.hypot(*second)
    moving = (lengths[0] > 1) & (lengths[1] > 1)
    assert moving.mean() > 0.01
    return float(((first * second).sum(0)[moving] / (lengths[0] * lengths[1])[moving]).mean())


@pytest.mark.parametrize("name", ["BasketballDunk", "HorseRace", "PlayingViolin"])  # Archery hardly moves
def test_motion_vectors_and_dis_go_where_tvl1_goes(name: str, real_videos: Path) -> None:
    path = sorted((real_videos / name).glob("*.avi"))[1]
    with open_video(path) as video:
        frames = to_gray(np.stack(list(islice(video.frames(), 12))))
    with MotionReader(path) as reader:
        vectors = np.stack(list(islice(reader.motion(), 11)))[8:]
    assert reader.has_vectors
    reference = make_flow("numba")(frames[8:])
    found = same_direction(vectors, reference)
    assert found > 0.7, "0.82 to 0.91 were measured"
    assert found > 0.2 + same_direction(vectors[..., ::-1, ::-1], reference), "the vectors are at other places"
    assert same_direction(make_flow("dis")(frames[8:]), reference) > 0.75, "0.84 to 0.92 were measured"
