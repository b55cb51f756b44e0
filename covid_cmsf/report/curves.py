"""Training curves: subsampled metrics, their mean over seeds, and figures as PNG and SVG."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covid_cmsf.files import atomic_path
from covid_cmsf.report.comparison import group_numbers
from covid_cmsf.report.runs import PlanRun, StageRun
from covid_cmsf.training.monitor import read_metrics

MAX_POINTS = 1000  # per curve


@dataclass(frozen=True)
class Chart:
    """One chart: a line for each of `keys`, which are names in metrics.jsonl."""

    name: str
    title: str
    keys: tuple[tuple[str, str], ...]  # (name in metrics.jsonl, label of the line)
    log: bool = False
    description: str = ""


CHARTS = (
    Chart("loss", "Loss", (("loss", "loss"),), description="Mean since the previous line of the log."),
    Chart(
        "purity",
        "Purity of the neighbors",
        (("purity", "with the constraint"), ("purity_free", "without"), ("purity_candidates", "all candidates")),
        description="Fraction of neighbors with the query's true label, with and without the constraint.",
    ),
    Chart(
        "agreement",
        "Guide agreement",
        (("agreement", "agreement"),),
        description="Fraction of the target's nearest bank entries that are candidates of the guide.",
    ),
    Chart(
        "effective_rank",
        "Effective rank",
        (("effective_rank", "rank"),),
        description="Number of dimensions in use. Mean shift fails silently by losing them.",
    ),
    Chart("lr", "Learning rate", (("lr", "rate"),), log=True),
    Chart("samples_per_s", "Samples per second", (("samples_per_s", "samples/s"),)),
)
KEYS = tuple(key for chart in CHARTS for key, _ in chart.keys)
Curve = dict[str, list[Any]]  # step, seconds, and the keys; None where a log line lacks a value


def stage_curve(stage: StageRun) -> Curve | None:
    """Return the logged metrics of a stage; None if there are none yet."""
    lines = subsample(read_metrics(stage.folder / "metrics.jsonl"))
    return to_columns(lines) if lines else None


def subsample(lines: Sequence[Mapping[str, Any]], max_points: int = MAX_POINTS) -> list[Mapping[str, Any]]:
    """Return every n-th line and the last, with the smallest n that gives at most `max_points` + 1 lines."""
    stride = -(-len(lines) // max_points) if lines else 1
    kept = list(lines[::stride])
    return kept if not lines or kept[-1] is lines[-1] else [*kept, lines[-1]]


def to_columns(lines: Sequence[Mapping[str, Any]]) -> Curve:
    """Transpose log lines to columns; columns without any value are omitted."""
    names = ("step", "seconds", *KEYS)
    columns = {name: [line.get(name) for line in lines] for name in names}
    return {name: values for name, values in columns.items() if any(value is not None for value in values)}


def mean_curve(curves: Sequence[Curve]) -> tuple[Curve, Curve]:
    """Return mean and standard deviation over seeds, at their common steps."""
    common = sorted(set.intersection(*(set(curve["step"]) for curve in curves)))
    positions = [{step: i for i, step in enumerate(curve["step"])} for curve in curves]
    mean: Curve = {"step": list(common)}
    spread: Curve = {"step": list(common)}
    for key in ("seconds", *KEYS):
        if not all(key in curve for curve in curves):
            continue
        mean[key], spread[key] = [], []
        for step in common:
            values = [curve[key][position[step]] for curve, position in zip(curves, positions, strict=True)]
            complete = all(value is not None for value in values)
            mean[key].append(statistics.mean(values) if complete else None)
            spread[key].append(statistics.stdev(values) if complete else None)
    return mean, spread


COLORS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#cc8800", "#33a6c9", "#888888")  # after Paul Tol


@dataclass(frozen=True)
class Line:
    """A curve to draw. Lines of one `family` differ only in their seed and have the same color and label."""

    family: int
    label: str
    seed: str  # "" for a single seed
    stage: str
    modality: str
    kind: str
    curve: Curve
    spread: Curve | None = None  # of a mean over seeds


def build_lines(plans: Sequence[PlanRun]) -> list[Line]:
    """Return a line per stage and seed with metrics, and a mean line per family of several seeds."""
    families: dict[tuple[int, str], list[Line]] = {}
    groups = group_numbers(plans)
    for plan, group in zip(plans, groups, strict=True):
        for one in plan.seeds:
            for stage in one.stages:
                curve = stage_curve(stage)
                if curve is None:
                    continue
                is_single_run = plan.config is None
                key = (group, "" if is_single_run else stage.name)
                family = families.setdefault(key, [])
                number = list(families).index(key)
                prefix = f"{plan.name}: " if max(groups) else ""
                label = plan.name if is_single_run else f"{prefix}{stage.name}"
                seed = stage.config.seed if stage.config is not None else one.seed
                name = f"seed {seed}" if one.split is None else f"split {one.split}, seed {seed}"
                name = f"{plan.name}, {name}" if is_single_run or groups.count(group) > 1 else name
                label = family[0].label if family else label
                line = Line(number, label, name, stage.name, stage.modality or "", stage.kind, curve)
                family.append(line)
    lines = []
    for family in families.values():
        lines += family if len(family) > 1 else [_without_seed(family[0])]
        if len(family) > 1:
            mean, spread = mean_curve([line.curve for line in family])
            first = family[0]
            lines.append(Line(first.family, first.label, "mean", first.stage, first.modality, first.kind, mean, spread))
    return lines


def line_color(family: int) -> str:
    """Return the color of a family; colors repeat after seven, then dashes differ."""
    return COLORS[family % len(COLORS)]


def line_dash(family: int) -> str:
    """Return the Plotly dash style of a family."""
    return ("solid", "dash", "dot", "dashdot")[family // len(COLORS) % 4]


def _without_seed(line: Line) -> Line:
    return Line(line.family, line.label, "", line.stage, line.modality, line.kind, line.curve)


LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
FORMATS = ("png", "svg")
STD_ALPHA = 0.15  # opacity of the standard deviation band
LEGEND_HEIGHT = 0.14  # inches per entry
EXTRA_DASHES = (":", "-.")  # for a chart's second and third key


def draw_curve_figures(lines: Sequence[Line], folder: Path) -> dict[str, list[str]]:
    """Write `<chart>.png` and `.svg` for each chart with data; return the file names by chart."""
    written: dict[str, list[str]] = {}
    for chart in CHARTS:
        if not any(key in line.curve for line in lines for key, _ in chart.keys):
            continue
        families = {line.family for line in lines if any(key in line.curve for key, _ in chart.keys)}
        figure = Figure(figsize=(7.2, max(3.6, 0.8 + LEGEND_HEIGHT * len(families))), dpi=150, layout="constrained")
        _draw_chart(figure.subplots(), lines, chart)
        for file_format in FORMATS:
            with atomic_path(folder / f"{chart.name}.{file_format}") as temporary:
                figure.savefig(temporary, format=file_format)
        written[chart.name] = [f"{chart.name}.{file_format}" for file_format in FORMATS]
    return written


def _draw_chart(axis: Axes, lines: Sequence[Line], chart: Chart) -> None:
    """Draw each family: its mean with the standard deviation, or its only line; the first key is thick."""
    several = {line.family for line in lines if line.spread is not None}
    for line in lines:
        if line.family in several and line.spread is None:
            continue
        present = [(number, key) for number, (key, _) in enumerate(chart.keys) if key in line.curve]
        for number, key in present:
            label = line.label if number == present[0][0] else ""
            style = LINE_STYLES[line_dash(line.family)] if number == 0 else EXTRA_DASHES[number - 1]
            width = 1.6 if number == 0 else 0.9
            x, y = _points(line.curve["step"], line.curve[key])
            axis.plot(x, y, style, color=line_color(line.family), linewidth=width, label=label.replace("$", r"\$"))
            if line.spread is not None and number == 0:
                _, spread = _points(line.curve["step"], line.spread[key])
                low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
                axis.fill_between(x, low, high, color=line_color(line.family), alpha=STD_ALPHA, linewidth=0)
    axis.set(xlabel="step", ylabel=chart.title, yscale="log" if chart.log else "linear")
    if len(chart.keys) > 1:
        styles = zip(("thick", "dotted", "dash-dotted"), chart.keys, strict=True)
        axis.set_title("; ".join(f"{style}: {key_label}" for style, (_, key_label) in styles), fontsize=7, loc="left")
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _points(steps: Sequence[float], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    kept = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    return [step for step, _ in kept], [value for _, value in kept]
