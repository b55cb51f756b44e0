"""TV-L1 on real clips of UCF-101: the backends agree, and find a known flow as well as OpenCV does."""

from pathlib import Path

import numpy as np
import pytest

from covid_cmsf.clips.decoders import open_video
from preprocess.flow import make_flow, to_gray
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
