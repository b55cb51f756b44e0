"""Shared by all tests: one thread per process, and the real clips where they are available."""

import os
from pathlib import Path

import pytest
import torch

pytest_plugins = ["tests.page_fixtures"]
os.environ.setdefault("OMP_NUM_THREADS", "1")
REAL_VIDEOS = os.environ.get("COVID_CMSF_REAL_VIDEOS")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    skip = pytest.mark.skip(reason="set COVID_CMSF_REAL_VIDEOS to a folder with real UCF-101 clips")
    for item in items:
        if "real" in item.keywords and REAL_VIDEOS is None:
            item.add_marker(skip)
        for name, needed in (("gpu", 1), ("multi_gpu", 2)):
            if item.get_closest_marker(name) is not None and (found := torch.cuda.device_count()) < needed:
                item.add_marker(pytest.mark.skip(reason=f"needs {needed} CUDA GPUs, PyTorch finds {found}"))


@pytest.fixture(scope="session")
def real_videos() -> Path:
    """The folder `videos/<Class>/*.avi` of real UCF-101 clips; its neighbor `splits/` has the lists."""
    assert REAL_VIDEOS is not None, "mark the test with `real`"
    path = Path(REAL_VIDEOS) / "videos"
    assert path.is_dir(), f"COVID_CMSF_REAL_VIDEOS={REAL_VIDEOS} has no folder videos/"
    return path
