"""A small clip store, made once."""

from pathlib import Path

import pytest

from covid_cmsf.clips import ClipStore
from tests.factories import make_ucf
from tests.preprocess.commands import preprocess


@pytest.fixture(scope="session")
def finished_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, three groups, 20 frames each. Read it, do not change it."""
    root = tmp_path_factory.mktemp("store")
    make_ucf(root / "videos", num_frames=20)
    result = preprocess(root / "videos", root / "clips")
    assert result.returncode == 0, result.stderr
    return root / "clips"


@pytest.fixture
def store(finished_store: Path) -> ClipStore:
    return ClipStore.open(finished_store)
