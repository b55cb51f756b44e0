"""The page of promises: 28 of them, and every test that it names exists."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "promises.md"
NUM_PROMISES = 28
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def split_promises(text: str) -> list[tuple[int, str]]:
    """Return the number and the text of each promise, in the order of the page."""
    parts = re.split(r"^(?:\*\*(\d+)\. |## .*$)", text, flags=re.MULTILINE)
    return [(int(number), body) for number, body in zip(parts[1::2], parts[2::2], strict=True) if number]


@cache
def functions(path: Path) -> set[str]:
    """Return the names of the test functions at the top of a file, which pytest collects."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


def problems(text: str) -> list[str]:
    """Return what is wrong with a page of promises."""
    promises = split_promises(text)
    found = []
    if [number for number, _ in promises] != list(range(1, NUM_PROMISES + 1)):
        found.append(f"promises are numbered {[number for number, _ in promises]}")
    for number, body in promises:
        named = TEST.findall(body)
        if not named:
            found.append(f"promise {number} names no test")
        if len(named) != body.count("`tests/"):
            found.append(f"promise {number}: a test is not of the form `tests/FILE.py::test_name`")
        for file, name in named:
            if not (ROOT / file).is_file():
                found.append(f"promise {number}: no file {file}")
            elif not name.startswith("test_") or name not in functions(ROOT / file):
                found.append(f"promise {number}: {file} has no {name}")
    return found


def test_every_promise_names_tests_that_exist() -> None:
    assert problems(PAGE.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("::test_translation_is_recovered", "::test_lost", "promise 13: tests/preprocess/test_flow.py has no test_"),
        ("::test_translation_is_recovered", "::make_flow", "promise 13: tests/preprocess/test_flow.py has no make"),
        ("training/test_guides.py::", "training/test_guide.py::", "promise 15: no file tests/training/test_guide.py"),
        ("**28. ", "**29. ", "promises are numbered"),
        ("**8. ", "8. ", "promises are numbered"),
        ("::test_translation_is_recovered", "", "promise 13: a test is not of the form"),
    ],
)  # fmt: skip
def test_wrong_pages_are_found(old: str, new: str, problem: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert old in text
    assert [one for one in problems(text.replace(old, new)) if one.startswith(problem)]


def test_a_promise_without_a_test_is_found() -> None:
    text = re.sub(r"^- `tests/training/test_guides.*\n", "", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert problems(text) == ["promise 15 names no test"]
