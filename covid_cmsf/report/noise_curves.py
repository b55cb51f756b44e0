"""Accuracy over the share of wrong labels, figure 3 of the paper, from the folders of finished stages."""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covid_cmsf.atomic import atomic_path, write_text_atomic

MEASURES = {"linear": "linear accuracy, %", "r1": "1-NN accuracy, %", "transfer": "mean transfer accuracy, %"}


@dataclass(frozen=True)
class Point:
    """One method at one share of wrong labels: mean and spread (standard deviation) over the seeds."""

    model: str
    noise: float
    measure: str
    mean: float
    spread: float | None
    values: tuple[float, ...]


def stage_folders(plans: Iterable[Path]) -> list[Path]:
    """Folders of finished stages in the folders of plans, of whatever seeds."""
    found = sorted({path.parent for plan in plans for path in plan.rglob("stage.json")})
    if not found:
        raise FileNotFoundError("no finished stage (stage.json) in these folders; `covid-cmsf cotrain` makes them")
    return found


def read_points(folders: Sequence[Path]) -> list[Point]:
    """Points of all stages that were trained, gathered over seeds."""
    values: dict[tuple[str, float, str], list[float]] = {}
    for folder in folders:
        if not (folder / "config.yaml").is_file():
            continue  # a baseline: nothing was trained
        config = yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8"))
        result = _result(folder)
        for measure in MEASURES:
            if result.get(measure) is not None:
                key = (method_words(config["method"]), float(config["labels"]["noise"]), measure)
                values.setdefault(key, []).append(float(result[measure]))
    return [
        Point(*key, statistics.mean(found), statistics.stdev(found) if len(found) > 1 else None, tuple(found))
        for key, found in sorted(values.items())
    ]


def method_words(method: dict[str, Any]) -> str:
    """`CMSF top-10`, `Xent`: what a legend calls it."""
    if method["name"] == "cmsf":
        return f"CMSF top-{method['k']}"
    names = {"xent": "Xent", "msf": "MSF", "supcon": "SupCon", "protonw": "ProtoNW", "frzproto": "FrzProto"}
    return names.get(method["name"], method["name"])


def draw_noise_curves(points: Sequence[Point], out: Path) -> None:
    """Writes `out`.png, `out`.svg and `out`.json."""
    measures = [name for name in MEASURES if any(point.measure == name for point in points)]
    figure = Figure(figsize=(4.2 * len(measures), 3.4), dpi=130, layout="constrained")
    for axis, measure in zip(figure.subplots(1, len(measures), squeeze=False)[0], measures, strict=True):
        _draw(axis, [point for point in points if point.measure == measure], MEASURES[measure])
    for kind in ("png", "svg"):
        with atomic_path(out.with_name(f"{out.name}.{kind}")) as temporary:
            figure.savefig(temporary, format=kind)
    write_text_atomic(out.with_name(f"{out.name}.json"), json.dumps([asdict(one) for one in points], indent=1) + "\n")


def _draw(axis: Axes, points: Sequence[Point], words: str) -> None:
    for model in dict.fromkeys(point.model for point in points):
        mine = sorted((point for point in points if point.model == model), key=lambda point: point.noise)
        axis.errorbar(
            [100 * point.noise for point in mine],
            [point.mean for point in mine],
            yerr=[point.spread or 0.0 for point in mine],
            marker="o",
            capsize=3,
            label=model,
        )
    axis.set_xlabel("wrong labels, %")
    axis.set_ylabel(words)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _result(folder: Path) -> dict[str, Any]:
    """R@1 and linear of the stage and, where `covid-cmsf evaluate transfer` wrote into its folder, the mean of that."""
    result: dict[str, Any] = json.loads((folder / "stage.json").read_text(encoding="utf-8"))
    transfer = folder / "transfer" / "result.json"
    if transfer.is_file():
        result["transfer"] = json.loads(transfer.read_text(encoding="utf-8"))["mean"]
    return result
