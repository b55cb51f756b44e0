"""Finished plans for the tests of the report."""

from pathlib import Path

import pytest

from tests.report.plan_factories import make_plan


@pytest.fixture(scope="session")
def seeds(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished plan of two seeds, without controls. Read only."""
    return make_plan(tmp_path_factory.mktemp("report") / "seeds", clips, seeds=[0, 1], controls=[])


@pytest.fixture(scope="session")
def plan(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished plan: a start, a round and a control of both modalities. Read only."""
    return make_plan(tmp_path_factory.mktemp("report") / "plan", clips)
