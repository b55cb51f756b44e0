"""The pages of results: generated from their data, up to date, and true to the numbers per seed."""

import re
import statistics
from pathlib import Path

import pytest
from pydantic import ValidationError

from tools.results import MARK, ROOT, VERDICTS, Claim, Experiment, Seeded, Table, load, outdated, render

SUMMARY, EXPERIMENTS = load()
PAGES = render(SUMMARY, EXPERIMENTS)
every_experiment = pytest.mark.parametrize("experiment", EXPERIMENTS.values(), ids=EXPERIMENTS.keys())
CLAIM = {"claim": "a", "effect": "b", "spread": "c", "seeds": [0], "command": "d", "verdict": "shown"}


def test_there_are_experiments() -> None:
    assert len(EXPERIMENTS) >= 17


def test_pages_are_up_to_date() -> None:
    assert not outdated(PAGES), "run python tools/results.py"


@every_experiment
def test_every_id_has_a_page_that_the_summary_links(experiment: Experiment) -> None:
    assert (ROOT / f"{experiment.id}.md").is_file()
    assert f"]({experiment.id}.md)" in PAGES["index.md"]


@every_experiment
def test_every_claim_has_all_fields_and_a_command_of_its_page(experiment: Experiment) -> None:
    for claim in experiment.claims:
        assert all(text.strip() for text in (claim.claim, claim.effect, claim.spread))
        assert claim.command in experiment.commands
        assert claim.verdict in VERDICTS
        assert set(claim.seeds) <= set(experiment.seeds)


@every_experiment
def test_mean_and_spread_agree_with_the_numbers_per_seed(experiment: Experiment) -> None:
    cells = [cell for table in experiment.tables for row in table.rows for cell in row]
    for cell in cells:
        if isinstance(cell, Seeded) and cell.values:
            assert len(cell.values) == len(experiment.seeds)
            # All are rounded to 0.1, so a recomputed figure may be off by one unit.
            assert statistics.mean(cell.values) == pytest.approx(cell.mean, abs=0.1)
            assert statistics.stdev(cell.values) == pytest.approx(cell.sd, abs=0.11)


@every_experiment
def test_a_page_has_no_path_of_a_single_machine(experiment: Experiment) -> None:
    assert not re.search(r"(?<![\w.])/(home|tmp|root|work|usr)/", PAGES[f"{experiment.id}.md"])


def test_the_summary_begins_with_what_real_clips_show() -> None:
    title, first = PAGES["index.md"].split("\n\n")[1:3]
    assert title.startswith("# ")
    assert "real clips" in first
    assert "not shown" in first and "no difference was beyond the error" in first  # also what disappoints


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.md")), ids=lambda path: path.name)
def test_relative_links_lead_to_files(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8")):
        assert target.startswith("http") or (path.parent / target).is_file(), target


@pytest.mark.parametrize("field", CLAIM)
def test_a_claim_without_a_field_is_refused(field: str) -> None:
    Claim.model_validate(CLAIM)
    with pytest.raises(ValidationError):
        Claim.model_validate({key: value for key, value in CLAIM.items() if key != field})


def test_an_unknown_verdict_is_refused() -> None:
    with pytest.raises(ValidationError, match="verdict"):
        Claim.model_validate({**CLAIM, "verdict": "proven"})


def test_a_row_of_another_width_is_refused() -> None:
    with pytest.raises(ValidationError, match="3 cells, not 2"):
        Table.model_validate({"title": "t", "columns": ["", "x"], "rows": [["a", 1, 2]]})


def test_missing_changed_and_orphaned_pages_are_out_of_date(tmp_path: Path) -> None:
    (tmp_path / "changed.md").write_text("old")
    (tmp_path / "same.md").write_text("same")
    (tmp_path / "gone.md").write_text(MARK + "data/gone.json -->")
    (tmp_path / "by-hand.md").write_text("# Lab notebook")
    pages = {"changed.md": "new", "same.md": "same", "missing.md": "new"}
    assert outdated(pages, tmp_path) == ["changed.md", "gone.md", "missing.md"]


def test_a_page_shows_spread_and_numbers_per_seed() -> None:
    page = PAGES["demo.md"]
    assert "| 50.4 ± 9.9 |" in page
    assert "| 39.3, 53.6, 58.3 |" in page
