"""The numbers of training over time, thinned for a page, and their mean over seeds."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from covid_cmsf.report.stage_folder import StageFolder
from covid_cmsf.training.metrics import read_metrics

MAX_POINTS = 1000  # of a curve


@dataclass(frozen=True)
class Measure:
    """One chart: a line for each of `keys`, which are names in metrics.jsonl."""

    name: str
    words: str
    keys: tuple[tuple[str, str], ...]  # name in metrics.jsonl, what the line is called
    log: bool = False
    about: str = ""


MEASURES = (
    Measure("loss", "Loss", (("loss", "loss"),), about="Mean since the line before."),
    Measure(
        "purity",
        "Purity of the neighbors",
        (("purity", "with the constraint"), ("purity_free", "without"), ("purity_candidates", "all candidates")),
        about="Share of the neighbors that have the query's true label, with and without the constraint.",
    ),
    Measure(
        "agreement",
        "Guide agreement",
        (("agreement", "agreement"),),
        about="Share of the target's nearest rows that the guide vouches for.",
    ),
    Measure(
        "effective_rank",
        "Effective rank",
        (("effective_rank", "rank"),),
        about="Directions in use. Mean shift fails silently by losing them.",
    ),
    Measure("lr", "Learning rate", (("lr", "rate"),), log=True),
    Measure("examples_per_s", "Examples a second", (("examples_per_s", "examples/s"),)),
)
KEYS = tuple(key for measure in MEASURES for key, _ in measure.keys)
Curve = dict[str, list[Any]]  # step, seconds, and the keys; None where a line does not have the number


def stage_curve(stage: StageFolder) -> Curve | None:
    """What a stage logged; None when there is nothing yet."""
    lines = thin(read_metrics(stage.folder / "metrics.jsonl"))
    return as_curve(lines) if lines else None


def thin(lines: Sequence[Mapping[str, Any]], most: int = MAX_POINTS) -> list[Mapping[str, Any]]:
    """Every n-th line and the last, for the smallest n that leaves at most `most` and one."""
    stride = -(-len(lines) // most) if lines else 1
    kept = list(lines[::stride])
    return kept if not lines or kept[-1] is lines[-1] else [*kept, lines[-1]]


def as_curve(lines: Sequence[Mapping[str, Any]]) -> Curve:
    """Columns instead of lines; those that no line has are left out."""
    names = ("step", "seconds", *KEYS)
    columns = {name: [line.get(name) for line in lines] for name in names}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def mean_curve(curves: Sequence[Curve]) -> tuple[Curve, Curve]:
    """Mean and standard deviation over seeds, at the steps that all of them have."""
    common = sorted(set.intersection(*(set(curve["step"]) for curve in curves)))
    places = [{step: i for i, step in enumerate(curve["step"])} for curve in curves]
    mean: Curve = {"step": list(common)}
    spread: Curve = {"step": list(common)}
    for key in ("seconds", *KEYS):
        if not all(key in curve for curve in curves):
            continue
        mean[key], spread[key] = [], []
        for step in common:
            values = [curve[key][place[step]] for curve, place in zip(curves, places, strict=True)]
            whole = all(value is not None for value in values)
            mean[key].append(statistics.mean(values) if whole else None)
            spread[key].append(statistics.stdev(values) if whole else None)
    return mean, spread
