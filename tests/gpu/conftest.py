"""The clip stores and the runs of the training tests."""

from pathlib import Path

import pytest

from tests.factories import build_once, make_sound_store, make_ucf
from tests.preprocess.commands import preprocess
from tests.training.conftest import _toy, clips, flow_weights, rgb_weights

__all__ = ["_toy", "clips", "flow_weights", "rgb_weights"]


@pytest.fixture(scope="session")
def motion_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the motion vectors of its videos. Read it, do not change it."""

    def build(root: Path) -> None:
        make_ucf(root / "videos", classes=2, groups=10, num_frames=12)
        done = preprocess(root / "videos", root / "clips", "--modalities", "rgb,motion")
        assert done.returncode == 0, done.stderr

    return build_once(tmp_path_factory, "motion", build) / "clips"


@pytest.fixture(scope="session")
def audio_clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the sound of its videos. Read it, do not change it."""

    def build(root: Path) -> None:
        make_sound_store(root, groups=8)

    return build_once(tmp_path_factory, "gpu-sound", build) / "clips"
