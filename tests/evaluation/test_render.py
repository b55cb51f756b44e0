"""Tables for the terminal."""

import io

import pytest
import torch
from rich.console import Console

from covid_cmsf.evaluation.features.subsets import VideoTable
from covid_cmsf.evaluation.render import scores_table
from covid_cmsf.evaluation.results import compute_scores


@pytest.mark.parametrize(("num_classes", "chance"), [(4, ["25.0", "25.0"]), (20, ["5.0", "25.0", "5.0"])])
def test_chance_is_the_last_row_of_every_table_of_classifiers(num_classes: int, chance: list[str]) -> None:
    count = 5 * num_classes
    labels = torch.arange(count) % num_classes
    names, classes = tuple(f"v{i}" for i in range(count)), tuple(f"c{i}" for i in range(num_classes))
    videos = VideoTable(names, names, labels, ("test",) * count, classes)
    probabilities = torch.rand(count, num_classes, generator=torch.Generator().manual_seed(0))
    scores = compute_scores(probabilities, videos)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(scores_table({"first": scores, "second": scores}, "a title"))
    rows = [line.replace("│", " ").split() for line in console.export_text().splitlines() if "│" in line]
    assert [row[0] for row in rows] == ["first", "second", "chance"] and rows[-1][1:] == chance
    assert rows[0][1] == f"{scores.top1:.1f}"
