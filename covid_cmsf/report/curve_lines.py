"""The curves of all plans, ready to be drawn: who they are, which color, and the mean over several seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

from covid_cmsf.report.comparison import group_numbers
from covid_cmsf.report.curves import Curve, mean_curve, stage_curve
from covid_cmsf.report.plan_folder import PlanFolder

COLORS = ("#4477aa", "#ee6677", "#228833", "#aa3377", "#cc8800", "#33a6c9", "#888888")  # after Paul Tol


@dataclass(frozen=True)
class Line:
    """Lines of one `family` differ only in their seed and share a color. `words` name the family."""

    family: int
    words: str
    seed: str  # "" where there is only one
    stage: str
    modality: str
    kind: str
    curve: Curve
    spread: Curve | None = None  # of a mean over seeds


def lines_of(plans: Sequence[PlanFolder]) -> list[Line]:
    """One for each stage and seed that has logged something, and one for the mean of each family of several."""
    families: dict[tuple[int, str], list[Line]] = {}
    groups = group_numbers(plans)
    for plan, group in zip(plans, groups, strict=True):
        for one in plan.seeds:
            for stage in one.stages:
                curve = stage_curve(stage)
                if curve is None:
                    continue
                alone = plan.settings is None
                key = (group, "" if alone else stage.name)
                family = families.setdefault(key, [])
                number = list(families).index(key)
                before = f"{plan.name}: " if max(groups) else ""
                words = plan.name if alone else f"{before}{stage.name}"
                seed = stage.settings.seed if stage.settings is not None else one.seed
                name = f"{plan.name}, seed {seed}" if alone or groups.count(group) > 1 else f"seed {seed}"
                words = family[0].words if family else words
                line = Line(number, words, name, stage.name, stage.modality or "", stage.kind, curve)
                family.append(line)
    lines = []
    for family in families.values():
        lines += family if len(family) > 1 else [_alone(family[0])]
        if len(family) > 1:
            mean, spread = mean_curve([line.curve for line in family])
            first = family[0]
            lines.append(Line(first.family, first.words, "mean", first.stage, first.modality, first.kind, mean, spread))
    return lines


def color_of(family: int) -> str:
    """Colors repeat after seven; then `dash_of` tells lines apart."""
    return COLORS[family % len(COLORS)]


def dash_of(family: int) -> str:
    """In Plotly's words."""
    return ("solid", "dash", "dot", "dashdot")[family // len(COLORS) % 4]


def _alone(line: Line) -> Line:
    return Line(line.family, line.words, "", line.stage, line.modality, line.kind, line.curve)
