"""Colors and dashes of runs, the same in bars and curves: a color per modality, or per group of several plans."""

from collections.abc import Sequence
from typing import NamedTuple

COLORS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#cc8800", "#33a6c9", "#888888")  # after Paul Tol
MODALITY_COLORS = {
    "rgb": "#4477aa",
    "flow": "#cc8800",
    "residual_flow": "#cc8800",
    "motion": "#ee6677",
    "residual_motion": "#ee6677",
    "frame": "#228833",
    "rgbdiff": "#aa3377",
    "audio": "#33a6c9",
}
OTHER_COLOR = "#888888"
LIGHTER = 0.35  # fraction of white, for stages that are no rounds
DASHES = ("solid", "dash", "dot", "dashdot")


class LineStyle(NamedTuple):
    """Color and Plotly's dash of a run's curves."""

    color: str
    dash: str


class Family(NamedTuple):
    """Runs that differ only in their seed, as far as their style depends on it."""

    group: int  # of its plan
    modality: str
    kind: str


def family_styles(families: Sequence[Family]) -> list[LineStyle]:
    """Return a style per family.

    In one plan the color is that of the modality; as in its bars, rounds have the full color. In several plans it is
    that of the group, as in the bars of their comparison, and the first modality has the full color. Families of the
    same color differ in their dashes.
    """
    several = len({one.group for one in families}) > 1
    first = families[0].modality if families else ""
    has_rounds = any(one.kind == "round" for one in families)
    styles: list[LineStyle] = []
    for one in families:
        color = COLORS[one.group % len(COLORS)] if several else MODALITY_COLORS.get(one.modality, OTHER_COLOR)
        full = one.modality == first if several else one.kind == "round" or not has_rounds
        color = color if full else lighten(color)
        number = sum(style.color == color for style in styles)
        styles.append(LineStyle(color, DASHES[number % len(DASHES)]))
    return styles


def lighten(color: str) -> str:
    """Mix a color like `#4477aa` with white."""
    values = [int(color[i : i + 2], 16) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(value + LIGHTER * (255 - value)):02x}" for value in values)
