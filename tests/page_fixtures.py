"""For the tests of pages: the system's Chromium, or a reason to skip them, a page that is watched, and clips."""

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.report.plan_factories import make_clips

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


class WatchedPage:
    """A page with everything that it complained about or asked for elsewhere."""

    def __init__(self, browser: Any, address: str, **context: Any) -> None:
        self.context = browser.new_context(**context)
        self.page = self.context.new_page()
        self.faults: list[str] = []
        self.page.on("console", self._heard)
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.on("request", self._asked)
        self.page.on("requestfailed", self._failed)
        self.home = address.rsplit("/", 1)[0]
        self.page.goto(address)
        self.page.wait_for_selector("html[data-ready]")

    def _failed(self, request: Any) -> None:
        # A picture that a new result replaces, or that the page's end interrupts, is given up by the browser itself.
        if request.resource_type != "image" or request.failure != "net::ERR_ABORTED":
            self.faults.append(f"failed: {request.url} ({request.failure})")

    def _heard(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.faults.append(message.text)

    def _asked(self, request: Any) -> None:
        if not request.url.startswith((self.home, "data:", "blob:")):
            self.faults.append(f"asked for {request.url}")

    def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        return self.page.evaluate(script)

    def drawn(self) -> None:
        """Wait until what was changed before is laid out and drawn."""
        self.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


@pytest.fixture
def open_page(browser: Any) -> Iterator[Any]:
    """Opens pages and, at the end, wants them to have been quiet."""
    opened: list[WatchedPage] = []

    def open_one(address: Path | str, **context: Any) -> WatchedPage:
        text = address if isinstance(address, str) else (address / "index.html").as_uri()
        opened.append(WatchedPage(browser, text, **context))
        return opened[-1]

    yield open_one
    faults = [fault for one in opened for fault in one.faults]
    for one in opened:
        one.context.close()
    assert not faults
