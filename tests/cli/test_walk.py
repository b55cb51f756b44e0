"""The walk of the architecture page names every file that `covid-cmsf evaluate retrieval` runs through."""

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

from typer.testing import CliRunner

from covid_cmsf.cli.app import app

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "concepts" / "architecture.md"
EVERY_COMMAND = {"covid_cmsf/cli/app.py", "covid_cmsf/config.py"}  # the page leaves them out and says so


def test_retrieval_stays_in_the_files_of_the_walk() -> None:
    section = PAGE.read_text().split("## A walk: `covid-cmsf evaluate retrieval FEATURES`")[1].split("\n## ")[0]
    listed = re.findall(r"^\| \d+ \| `([\w/.]+)`", section, re.MULTILINE)
    assert 5 < len(listed) <= 18
    command = ["evaluate", "retrieval", str(ROOT / "tests" / "data" / "v0" / "rgb.features")]
    CliRunner().invoke(app, command)  # imports everything, so that the second run shows calls alone
    used: set[str] = set()

    def record(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(ROOT / "covid_cmsf"):
            used.add(path.relative_to(ROOT).as_posix())

    sys.setprofile(record)
    try:
        result = CliRunner().invoke(app, command)
    finally:
        sys.setprofile(None)
    assert result.exit_code == 0 and "42.9" in result.output
    assert used - EVERY_COMMAND == set(listed)
