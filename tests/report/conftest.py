"""A browser for the tests of the page: the system's Chromium, or a reason to skip them."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.plan_factories import make_clips, make_plan

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
INSTALL, INSTALL_SECONDS = "COVID_CMSF_INSTALL_CHROMIUM", 600


def find_chromium() -> str | None:
    return next((path for path in map(shutil.which, NAMES) if path), None)


def install_chromium() -> str | None:
    """Debian's package, by one test process at a time and only on request; returns why not, or None."""
    if not os.environ.get(INSTALL):
        return f"no Chromium here: install one, or let root's tests do so by apt-get with {INSTALL}=1"
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        return "no Chromium here, and only root can install one by apt-get"
    with (Path(tempfile.gettempdir()) / "covid-cmsf-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if find_chromium():
            return None
        try:
            for args in (["update"], ["install", "-y", "--no-install-recommends", "chromium"]):
                subprocess.run(["apt-get", *args], check=True, capture_output=True, timeout=INSTALL_SECONDS)
        except (subprocess.SubprocessError, OSError) as error:
            return f"no Chromium here, and apt-get could not install it: {error}"
    return None


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Headless Chromium under Playwright."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install -e .[dev]")
    path = find_chromium()
    if path is None and (reason := install_chromium()):
        pytest.skip(reason)
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=path or find_chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clip store of 4 classes, 6 sources each, 2 videos a source; names are as odd as names may be. Read only."""
    return make_clips(tmp_path_factory.mktemp("report") / "clips")


@pytest.fixture(scope="session")
def seeds(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished plan of two seeds, without controls. Read only."""
    return make_plan(tmp_path_factory.mktemp("report") / "seeds", clips, seeds=[0, 1], controls=[])


@pytest.fixture(scope="session")
def plan(clips: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished plan: a start, a round and a control of both modalities. Read only."""
    return make_plan(tmp_path_factory.mktemp("report") / "plan", clips)
