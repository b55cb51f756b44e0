"""The curves once more as PNG and SVG, for papers."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from covid_cmsf.atomic import atomic_path
from covid_cmsf.report.curve_lines import Line, color_of, dash_of
from covid_cmsf.report.curves import MEASURES, Measure

STYLES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
KINDS = ("png", "svg")
SHADE = 0.15  # how strong a spread is painted
LEGEND = 0.14  # inches: a line of the legend
OTHERS = (":", "-.")  # lines of a measure's second and third key


def draw_figures(lines: Sequence[Line], folder: Path) -> dict[str, list[str]]:
    """Writes `<measure>.png` and `.svg` for each measure that there is something of; returns their names."""
    written: dict[str, list[str]] = {}
    for measure in MEASURES:
        if not any(key in line.curve for line in lines for key, _ in measure.keys):
            continue
        shown = {line.family for line in lines if any(key in line.curve for key, _ in measure.keys)}
        figure = Figure(figsize=(7.2, max(3.6, 0.8 + LEGEND * len(shown))), dpi=150, layout="constrained")
        _draw(figure.subplots(), lines, measure)
        for kind in KINDS:
            with atomic_path(folder / f"{measure.name}.{kind}") as temporary:
                figure.savefig(temporary, format=kind)
        written[measure.name] = [f"{measure.name}.{kind}" for kind in KINDS]
    return written


def _draw(axis: Axes, lines: Sequence[Line], measure: Measure) -> None:
    """The mean of a family with its spread, or the only line; of several keys the first is the thick one."""
    several = {line.family for line in lines if line.spread is not None}
    for line in lines:
        if line.family in several and line.spread is None:
            continue
        there = [(number, key) for number, (key, _) in enumerate(measure.keys) if key in line.curve]
        for number, key in there:
            label = line.words if number == there[0][0] else ""
            style = STYLES[dash_of(line.family)] if number == 0 else OTHERS[number - 1]
            width = 1.6 if number == 0 else 0.9
            x, y = _points(line.curve["step"], line.curve[key])
            axis.plot(x, y, style, color=color_of(line.family), linewidth=width, label=label.replace("$", r"\$"))
            if line.spread is not None and number == 0:
                _, spread = _points(line.curve["step"], line.spread[key])
                low, high = ([a + sign * b for a, b in zip(y, spread, strict=True)] for sign in (-1, 1))
                axis.fill_between(x, low, high, color=color_of(line.family), alpha=SHADE, linewidth=0)
    axis.set(xlabel="step", ylabel=measure.words, yscale="log" if measure.log else "linear")
    if len(measure.keys) > 1:
        looks = zip(("thick", "dotted", "dash-dotted"), measure.keys, strict=True)
        axis.set_title("; ".join(f"{look}: {words}" for look, (_, words) in looks), fontsize=7, loc="left")
    axis.grid(alpha=0.25, linewidth=0.5)
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=6, loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _points(steps: Sequence[float], values: Sequence[float | None]) -> tuple[list[float], list[float]]:
    kept = [(step, value) for step, value in zip(steps, values, strict=True) if value is not None]
    return [step for step, _ in kept], [value for _, value in kept]
