"""requirements/tested.txt: it has what setup.cfg asks for, within its bounds, and names no place."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tools.tested_versions import ROOT, TESTED, read_requirements, read_tested, required_versions

REQUIREMENTS = read_requirements()


def test_setup_cfg_asks_for_something() -> None:
    assert {"torch", "av", "pytest"} <= {one.name for one in REQUIREMENTS}


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_every_requirement_has_a_tested_version_within_its_bounds(requirement: Requirement) -> None:
    tested = read_tested()
    name = canonicalize_name(requirement.name)
    assert name in tested, f"{TESTED.name} lacks {name}: run `python tools/tested_versions.py`"
    assert requirement.specifier.contains(tested[name], prereleases=True)


def test_every_bound_has_its_reason_in_the_line_above() -> None:
    lines = (ROOT / "setup.cfg").read_text(encoding="utf-8").partition("install_requires")[2].splitlines()
    bounds = [number for number, line in enumerate(lines) if re.match(r"    [\w.-]+[<>=]=?\d", line)]
    assert len(bounds) >= 6
    assert [lines[number] for number in bounds if not lines[number - 1].startswith("    # ")] == []


def test_it_has_names_and_versions_and_no_place() -> None:
    lines = [line for line in TESTED.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(lines) > 50 and lines == sorted(lines, key=lambda line: line.partition("==")[0])
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*==[0-9][\w.]*", line) for line in lines)


def test_what_others_need_is_there_too() -> None:
    found = required_versions([Requirement("pydantic")])
    assert {"pydantic", "pydantic-core", "annotated-types"} <= set(found)
    assert required_versions([Requirement("no-such-package")]) == {}
