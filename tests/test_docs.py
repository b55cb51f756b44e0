"""The documentation: links, anchors and named files exist, the site builds strictly, the tutorial runs."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
import torch
import yaml
from markdown.extensions.toc import slugify
from nbclient import NotebookClient

from covid_cmsf.methods.base import EmbeddedBatch
from covid_cmsf.methods.memory_bank import MemoryBanks
from tools.docs_pages import NOTEBOOK, generate

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GENERATED = {DOCS / uri: content for uri, content in generate().items()}
PAGES = sorted(
    {
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
        *DOCS.rglob("*.md"),
        *(path for path in GENERATED if path.suffix == ".md"),
    }
)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+?)(?: +\{#([\w-]+)\})?$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def read(page: Path) -> str:
    content = GENERATED[page] if page in GENERATED else page.read_text()
    assert isinstance(content, str)
    return FENCE.sub("", content)


def anchors(page: Path) -> set[str]:
    """The ids that headings get, as Python-Markdown's toc makes them; a repeated one is numbered."""
    found: set[str] = set()
    for heading, given in HEADING.findall(read(page)):
        base = given or slugify(re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading), "-")
        name, number = base, 0
        while name in found:
            number += 1
            name = f"{base}_{number}"
        found.add(name)
    return found


def test_there_are_pages() -> None:
    assert len(PAGES) > 40


@every_page
def test_relative_links_and_anchors_exist(page: Path) -> None:
    wrong = []
    for link in LINK.findall(read(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() and target not in GENERATED:
            wrong.append(f"{link}: no such file")
        elif anchor and anchor not in anchors(target):
            wrong.append(f"{link}: no such heading")
    assert not wrong


@pytest.mark.parametrize(
    "page", [DOCS / "concepts" / "architecture.md", DOCS / "how-to" / "extend.md"], ids=lambda p: p.stem
)
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(r"`((?:covid_cmsf|preprocess|tests|tools|configs)/[\w./-]+)`", page.read_text()))
    assert named
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_the_example_method_computes_a_loss() -> None:
    (example,) = re.findall(
        r"^```python\n(.*?)^```$", (DOCS / "how-to" / "extend.md").read_text(), re.MULTILINE | re.DOTALL
    )
    names: dict[str, Any] = {}
    exec(example, names)  # noqa: S102
    method = names["NearestConfig"](name="nearest").build(num_classes=0, embedding_dim=2)
    banks = MemoryBanks(4, {"target": 2})
    target = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    ids = torch.arange(2)
    indices = banks.push_({"target": target}, videos=ids, sources=ids, labels=ids, true_labels=ids)
    batch = EmbeddedBatch(-target, ids, ids, ids, ids, target=target, bank_indices=indices)
    losses = method.losses(batch, banks, torch.Generator())
    assert losses.mean() == 4  # opposite unit vectors


def test_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 200


def test_every_page_is_in_the_navigation() -> None:
    text = (ROOT / "mkdocs.yml").read_text()
    config = yaml.safe_load(text)
    assert config["hooks"] == ["tools/docs_pages.py"]
    for page in PAGES:
        if DOCS in page.parents and "data" not in page.parts:
            assert f" {page.relative_to(DOCS)}\n" in text, f"{page.relative_to(DOCS)} is not in nav"


@pytest.mark.slow
def test_the_site_builds_strictly_and_needs_no_network(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > 40
    remote = re.compile(r"""<(?:script|link|img|iframe)\b[^>]*(?:src|href)=["']?(?:https?:)?//[^>]*>""")
    assert not {page.name: remote.findall(page.read_text()) for page in pages if remote.search(page.read_text())}
    assert (tmp_path / "site" / "search" / "search_index.json").is_file()


@pytest.mark.slow
def test_the_tutorial_runs() -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert sum(cell.cell_type == "code" for cell in notebook.cells) >= 7
    NotebookClient(notebook, timeout=900, kernel_name="python3").execute()
    printed = "".join(output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", []))
    assert re.findall(r"R@1 \d+", printed), "the tutorial measures its networks"
    pictures = [
        output for cell in notebook.cells for output in cell.get("outputs", []) if "image/png" in output.get("data", {})
    ]
    assert len(pictures) >= 4


def test_the_docs_say_how_much_the_demo_differs_between_machines_and_why() -> None:
    text = " ".join((DOCS / "reference" / "faq.md").read_text(encoding="utf-8").split())
    answer = text.split("**Why do my demo numbers differ from the table?**")[1].split("**")[0]
    assert (
        "61.9" in answer
        and "76.2" in answer
        and "54.2 and 69.0" in answer
        and "a75e64f" in answer
        and "up to 8 points" in answer
        and "vector instructions" in answer
    )
