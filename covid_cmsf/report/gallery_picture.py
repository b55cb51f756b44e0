"""The gallery as a picture: a row for each query, frames green where the true label is the query's, else red."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covid_cmsf.atomic import atomic_path
from covid_cmsf.report.noisy_neighbors import GalleryRow

CELL, TEXT = 1.1, 0.34  # inches: a picture, a line of words below it
RIGHT, WRONG, QUERY = "#1a7f37", "#cf222e", "#0969da"
WORDS = {"correct": "query\nlabeled\nrightly", "wrong": "query\nlabeled\nwrongly", "random": "random,\nsame\nlabel"}


def draw_gallery(
    rows: Sequence[GalleryRow],
    pictures: Mapping[str, NDArray[np.uint8]],
    class_names: Sequence[str],
    out: Path,
) -> None:
    """Writes a PNG. `pictures` are (H, W, 3) by name; true classes are written below each."""
    columns = 1 + max(len(row.found) for row in rows)
    figure = Figure(figsize=(CELL * (columns + 0.8), (CELL + TEXT) * len(rows) + TEXT), dpi=130)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    label = rows[0].found[0].seen_label
    figure.suptitle(f"images labeled {class_names[label]!r}; below each its true class", fontsize=9)
    figure.subplots_adjust(left=0.09, right=0.995, top=0.9, bottom=0.07, wspace=0.12, hspace=0.35)
    for line, row in zip(axes, rows, strict=True):
        wanted = row.query.true_label if row.query is not None else label
        for axis in line:
            axis.axis("off")
        line[0].text(-0.15, 0.5, WORDS[row.kind], fontsize=8, ha="right", va="center", transform=line[0].transAxes)
        if row.query is not None:
            _draw(line[0], pictures[row.query.name], class_names[row.query.true_label], QUERY)
        for axis, one in zip(line[1:], row.found, strict=False):
            color = RIGHT if one.true_label == wanted else WRONG
            _draw(axis, pictures[one.name], class_names[one.true_label], color)
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format="png")


def _draw(axis: Axes, picture: NDArray[np.uint8], words: str, color: str) -> None:
    axis.axis("on")
    axis.imshow(picture, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for edge in axis.spines.values():
        edge.set(color=color, linewidth=2.5)
    axis.set_xlabel(words[:16].replace("$", r"\$"), fontsize=7, color=color, labelpad=2)
