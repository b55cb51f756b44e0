"""Figures of the paper under label noise: the gallery of neighbors (figure 2), and accuracy over noise (figure 3)."""

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from covid_cmsf.files import atomic_path, read_text, write_text_atomic
from covid_cmsf.report.noisy_gallery import GalleryRow
from covid_cmsf.yaml_files import read_yaml_file

CELL, CAPTION = 1.1, 0.34  # inches: an image, and the line of text below it
CORRECT_COLOR, WRONG_COLOR, QUERY_COLOR = "#1a7f37", "#cf222e", "#0969da"
ROW_LABELS = {
    "correct": "query with\ncorrect\nlabel",
    "wrong": "query with\nwrong\nlabel",
    "random": "random,\nsame\nlabel",
}


def draw_gallery(
    rows: Sequence[GalleryRow],
    pictures: Mapping[str, NDArray[np.uint8]],
    class_names: Sequence[str],
    out: Path,
) -> None:
    """Write a PNG, a row per query; frames are green if the true label is the query's, else red.

    `pictures` are (H, W, 3) by name; the true class is below each.
    """
    columns = 1 + max(len(row.neighbors) for row in rows)
    figure = Figure(figsize=(CELL * (columns + 0.8), (CELL + CAPTION) * len(rows) + CAPTION), dpi=130)
    axes = figure.subplots(len(rows), columns, squeeze=False)
    label = rows[0].neighbors[0].noisy_label
    figure.suptitle(f"images labeled {class_names[label]!r}; below each its true class", fontsize=9)
    figure.subplots_adjust(left=0.09, right=0.995, top=0.9, bottom=0.07, wspace=0.12, hspace=0.35)
    for line, row in zip(axes, rows, strict=True):
        expected_label = row.query.true_label if row.query is not None else label
        for axis in line:
            axis.axis("off")
        line[0].text(-0.15, 0.5, ROW_LABELS[row.kind], fontsize=8, ha="right", va="center", transform=line[0].transAxes)
        if row.query is not None:
            _draw_image(line[0], pictures[row.query.name], class_names[row.query.true_label], QUERY_COLOR)
        for axis, one in zip(line[1:], row.neighbors, strict=False):
            color = CORRECT_COLOR if one.true_label == expected_label else WRONG_COLOR
            _draw_image(axis, pictures[one.name], class_names[one.true_label], color)
    with atomic_path(out) as temporary:
        figure.savefig(temporary, format="png")


def _draw_image(axis: Axes, picture: NDArray[np.uint8], caption: str, color: str) -> None:
    axis.axis("on")
    axis.imshow(picture, interpolation="nearest")
    axis.set_xticks([])
    axis.set_yticks([])
    for edge in axis.spines.values():
        edge.set(color=color, linewidth=2.5)
    axis.set_xlabel(caption[:16].replace("$", r"\$"), fontsize=7, color=color, labelpad=2)


NOISE_METRICS = {"linear": "linear accuracy, %", "r1": "1-NN accuracy, %", "transfer": "mean transfer accuracy, %"}


@dataclass(frozen=True)
class NoisePoint:
    """One method at one noise level: mean and standard deviation (`spread`) over seeds."""

    model: str
    noise: float
    metric: str
    mean: float
    spread: float | None
    values: tuple[float, ...]


def finished_stage_folders(plans: Iterable[Path]) -> list[Path]:
    """Return the folders of finished stages below the folders of plans, of all seeds."""
    found = sorted({path.parent for plan in plans for path in plan.rglob("stage.json")})
    if not found:
        raise FileNotFoundError("no finished stage (stage.json) in these folders; `covid-cmsf cotrain` writes them")
    return found


def read_points(folders: Sequence[Path]) -> list[NoisePoint]:
    """Read the results of all trained stages, grouped over seeds."""
    values: dict[tuple[str, float, str], list[float]] = {}
    for folder in folders:
        if not (folder / "config.yaml").is_file():
            continue  # a baseline without training
        config = read_yaml_file(folder / "config.yaml")
        result = _read_result(folder)
        for metric in NOISE_METRICS:
            if result.get(metric) is not None:
                key = (method_label(config["method"]), float(config["labels"]["noise"]), metric)
                values.setdefault(key, []).append(float(result[metric]))
    return [
        NoisePoint(*key, statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None, tuple(found))
        for key, found in sorted(values.items())
    ]


def method_label(method: dict[str, Any]) -> str:
    """Return the name of a method in a legend: `CMSF top-10`, `Xent`."""
    if method["name"] == "cmsf":
        return f"CMSF top-{method['k']}"
    names = {"xent": "Xent", "msf": "MSF", "supcon": "SupCon", "protonw": "ProtoNW", "frzproto": "FrzProto"}
    return names.get(method["name"], str(method["name"]))


def draw_noise_curves(points: Sequence[NoisePoint], out: Path) -> None:
    """Write `out`.png, `out`.svg and `out`.json."""
    metrics = [name for name in NOISE_METRICS if any(point.metric == name for point in points)]
    figure = Figure(figsize=(4.2 * len(metrics), 3.4), dpi=130, layout="constrained")
    for axis, metric in zip(figure.subplots(1, len(metrics), squeeze=False)[0], metrics, strict=True):
        _draw_curves(axis, [point for point in points if point.metric == metric], NOISE_METRICS[metric])
    for file_format in ("png", "svg"):
        with atomic_path(out.with_name(f"{out.name}.{file_format}")) as temporary:
            figure.savefig(temporary, format=file_format)
    write_text_atomic(out.with_name(f"{out.name}.json"), json.dumps([asdict(one) for one in points], indent=1) + "\n")


def _draw_curves(axis: Axes, points: Sequence[NoisePoint], label: str) -> None:
    for model in dict.fromkeys(point.model for point in points):
        curve = sorted((point for point in points if point.model == model), key=lambda point: point.noise)
        axis.errorbar(
            [100 * point.noise for point in curve],
            [point.mean for point in curve],
            yerr=[point.spread or 0.0 for point in curve],
            marker="o",
            capsize=3,
            label=model,
        )
    axis.set_xlabel("wrong labels, %")
    axis.set_ylabel(label)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _read_result(folder: Path) -> dict[str, Any]:
    """Read the stage's result, and the mean of `covid-cmsf evaluate transfer` if its folder has one."""
    result: dict[str, Any] = json.loads(read_text(folder / "stage.json"))
    transfer = folder / "transfer" / "result.json"
    if transfer.is_file():
        result["transfer"] = json.loads(read_text(transfer))["mean"]
    return result
