"""Training curves: subsampled and smoothed metrics, their mean over seeds, and figures as PNG and SVG."""

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covid_cmsf.files import atomic_path
from covid_cmsf.methods.mean_shift import ByolConfig, MeanShiftConfig
from covid_cmsf.report.comparison import group_numbers
from covid_cmsf.report.line_styles import Family, LineStyle, family_styles
from covid_cmsf.report.runs import PlanRun, StageRun
from covid_cmsf.training.monitor import read_metrics

MAX_POINTS = 1000  # per curve
SMOOTHING = 20  # a smoothed point is the mean over a twentieth of the curve on each side


@dataclass(frozen=True)
class Chart:
    """One chart: a line for each of `keys`, which are names in metrics.jsonl."""

    name: str
    title: str
    keys: tuple[tuple[str, str], ...]  # (name in metrics.jsonl, label of the line)
    log: bool = False
    description: str = ""
    smooth: bool = True
    loss: str | None = None  # only runs with this loss; None: all
    missing: str = "No run has logged this."  # what the page says where there is no line
    command: str = ""  # what would log it


CHARTS = (
    Chart("loss", "Loss", (("loss", "loss"),), description="Mean since the previous line of the log."),
    Chart(
        "purity",
        "Purity of the neighbors",
        (("purity", "with the constraint"), ("purity_free", "without"), ("purity_candidates", "all candidates")),
        description="Fraction of neighbors with the query's true label, with and without the constraint.",
        missing="No run has logged this: it needs labels, and a method with neighbors (MSF, CMSF).",
    ),
    Chart(
        "agreement",
        "Guide agreement",
        (("agreement", "agreement"),),
        description="Fraction of the target's nearest bank entries that are candidates of the guide.",
        missing="No run has logged this: only methods with a guide do (CMSF).",
    ),
    Chart(
        "effective_rank",
        "Effective rank",
        (("effective_rank", "rank"),),
        description="Number of dimensions in use. Mean shift fails silently by losing them.",
    ),
    Chart(
        "knn",
        "Nearest neighbors",
        (("knn_top1", "same class"), ("window_r1", "own other window")),
        description="On videos of another subset: percentage whose nearest video of another source has their class, "
        "and of first windows that find the last one of their video.",
        missing="No run was asked for this. A setting does, also when a run is resumed: ",
        command="runtime.knn_every_epochs=5",
    ),
    Chart("lr", "Learning rate", (("lr", "rate"),), log=True, smooth=False),
    Chart("samples_per_s", "Samples per second", (("samples_per_s", "samples/s"),)),
)
KEYS = tuple(key for chart in CHARTS for key, _ in chart.keys)
MEAN_SHIFT = "mean shift"  # the loss of all mean-shift methods is 2 - 2 cosine, so they share axes
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


def smooth(values: Sequence[float | None]) -> list[float | None]:
    """Return a running mean, centered and narrower toward both ends, so that the ends keep their values."""
    most = len(values) // SMOOTHING
    smoothed: list[float | None] = []
    for i, value in enumerate(values):
        reach = min(i, len(values) - 1 - i, most)
        near = [one for one in values[i - reach : i + reach + 1] if one is not None]
        smoothed.append(None if value is None else sum(near) / len(near))
    return smoothed


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
    loss: str = ""  # the method's name, or MEAN_SHIFT
    group: int = 0  # of its plan


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
                modality, loss = stage.modality or "", loss_name(stage)
                family.append(
                    Line(number, label, name, stage.name, modality, stage.kind, curve, loss=loss, group=group)
                )
    lines = []
    for family in families.values():
        lines += family if len(family) > 1 else [replace(family[0], seed="")]
        if len(family) > 1:
            mean, spread = mean_curve([line.curve for line in family])
            lines.append(replace(family[0], seed="mean", curve=mean, spread=spread))
    return lines


def loss_name(stage: StageRun) -> str:
    """Return what a stage's loss is comparable with: the name of its method, or `mean shift`."""
    if stage.config is None:
        return ""
    method = stage.config.method
    return MEAN_SHIFT if isinstance(method, MeanShiftConfig | ByolConfig) else method.display_name


def charts_of(lines: Sequence[Line]) -> list[Chart]:
    """Return all charts; of the loss, one per kind of loss, since their values are not comparable."""
    losses = list(dict.fromkeys(line.loss for line in lines if "loss" in line.curve))
    if len(losses) < 2:
        return list(CHARTS)
    first, *others = CHARTS
    split = [
        replace(
            first,
            name="loss-" + re.sub(r"[^a-z0-9]+", "-", loss.lower()).strip("-"),
            title=f"Loss of {loss}" if loss else "Loss of unknown methods",
            loss=loss,
        )
        for loss in losses
    ]
    return [*split, *others]


def line_styles(lines: Sequence[Line]) -> dict[int, LineStyle]:
    """Return the style of each family."""
    families = {line.family: Family(line.group, line.modality, line.kind) for line in lines}
    return dict(zip(families, family_styles(list(families.values())), strict=True))


LINE_STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
FORMATS = ("png", "svg")
STD_ALPHA = 0.15  # opacity of the standard deviation band
LEGEND_HEIGHT = 0.14  # inches per entry
EXTRA_DASHES = (":", "-.")  # for a chart's second and third key


def draw_curve_figures(lines: Sequence[Line], folder: Path) -> dict[str, list[str]]:
    """Write `<chart>.png` and `.svg` for each chart with data; return the file names by chart."""
    written: dict[str, list[str]] = {}
    styles = line_styles(lines)
    for chart in charts_of(lines):
        drawn = [
            line
            for line in lines
            if chart.loss in (None, line.loss) and any(key in line.curve for key, _ in chart.keys)
        ]
        if not drawn:
            continue
        families = {line.family for line in drawn}
        figure = Figure(figsize=(7.2, max(3.6, 0.8 + LEGEND_HEIGHT * len(families))), dpi=150, layout="constrained")
        _draw_chart(figure.subplots(), drawn, chart, styles)
        for file_format in FORMATS:
            with atomic_path(folder / f"{chart.name}.{file_format}") as temporary:
                figure.savefig(temporary, format=file_format)
        written[chart.name] = [f"{chart.name}.{file_format}" for file_format in FORMATS]
    return written


def _draw_chart(axis: Axes, lines: Sequence[Line], chart: Chart, styles: Mapping[int, LineStyle]) -> None:
    """Draw each family: its mean with the standard deviation, or its only line; the first key is thick."""
    several = {line.family for line in lines if line.spread is not None}
    for line in lines:
        if line.family in several and line.spread is None:
            continue
        present = [(number, key) for number, (key, _) in enumerate(chart.keys) if key in line.curve]
        for number, key in present:
            label = line.label if number == present[0][0] else ""
            color, dash = styles[line.family]
            style = LINE_STYLES[dash] if number == 0 else EXTRA_DASHES[number - 1]
            width = 1.6 if number == 0 else 0.9
            values, spreads = line.curve[key], (line.spread or {}).get(key)
            if chart.smooth:
                values, spreads = smooth(values), None if spreads is None else smooth(spreads)
            x, y = _points(line.curve["step"], values)
            axis.plot(x, y, style, color=color, linewidth=width, label=label.replace("$", r"\$"))
            if spreads is not None and number == 0:
                _, spread = _points(line.curve["step"], spreads)
                low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
                axis.fill_between(x, low, high, color=color, alpha=STD_ALPHA, linewidth=0)
    axis.set(xlabel="step", ylabel=chart.title, yscale="log" if chart.log else "linear")
    if len(chart.keys) > 1:
        keys = zip(("thick", "dotted", "dash-dotted"), chart.keys, strict=False)  # charts have two or three
        axis.set_title("; ".join(f"{style}: {key_label}" for style, (_, key_label) in keys), fontsize=7, loc="left")
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _points(steps: Sequence[float], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    kept = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    return [step for step, _ in kept], [value for _, value in kept]
