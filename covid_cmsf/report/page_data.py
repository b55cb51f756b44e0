"""Plans and curves as the page's scripts want them: plain values."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from covid_cmsf.report.comparison import group_numbers
from covid_cmsf.report.curve_lines import Line, color_of, dash_of
from covid_cmsf.report.curves import MEASURES
from covid_cmsf.report.plan_folder import PlanFolder
from covid_cmsf.report.plan_layout import lay_out
from covid_cmsf.report.plan_rows import plan_rows
from covid_cmsf.report.series import Series, before_and_after
from covid_cmsf.report.stage_folder import FEATURES


def plan_values(plans: Sequence[PlanFolder], series: Sequence[Series | None]) -> list[dict[str, Any]]:
    """For each plan its table, its picture, and where its neighbors, maps and errors are."""
    groups = group_numbers(plans)
    return [
        {
            "name": plan.name,
            "kind": "run" if plan.settings is None else "plan",
            "group": group,
            "seeds": [one.seed for one in plan.seeds if one.seed is not None],
            "rows": plan_rows(plan),
            "layout": asdict(lay_out(plan.first.stages)),
            "protocol": plan.settings.evaluation.protocol if plan.settings is not None else None,
            "series": None if own is None else _series_values(plan, own, number),
            "missing": _missing(plan),
        }
        for number, (plan, group, own) in enumerate(zip(plans, groups, series, strict=True))
    ]


def _series_values(plan: PlanFolder, series: Series, number: int) -> dict[str, Any]:
    stages = [stage for stage, _ in series.stages]
    pairs = {stage.modality or "": before_and_after(stages, stage.modality) for stage in stages}
    return {"number": number, "seed": plan.first.seed, "before_and_after": pairs}


def _missing(plan: PlanFolder) -> str | None:
    """The command that makes what a report without features lacks."""
    if any(stage.features for stage in plan.stages):
        return None
    if plan.settings is not None:
        return "no stage is done yet; `covid-cmsf cotrain` extracts features after each"
    folder, clips = plan.folder, plan.clips or "CLIPS"
    features = folder / FEATURES
    return (
        f"covid-cmsf extract {folder}/checkpoints/last.pt {clips} --out {features} && "
        f"covid-cmsf evaluate retrieval {features} --json > {folder}/retrieval.json"
    )


def curve_values(lines: Sequence[Line], figures: dict[str, list[str]]) -> dict[str, Any]:
    """The charts and their lines; `figures` are the names of the files by measure."""
    charts = [{**asdict(measure), "figures": figures.get(measure.name, [])} for measure in MEASURES]
    drawn = [{**asdict(line), "color": color_of(line.family), "dash": dash_of(line.family)} for line in lines]
    return {"charts": charts, "lines": drawn}


def figures_there(folder: Path) -> dict[str, list[str]]:
    """Figures that an earlier report drew."""
    kinds = ("png", "svg")
    return {
        measure.name: [f"{measure.name}.{kind}" for kind in kinds if (folder / f"{measure.name}.{kind}").is_file()]
        for measure in MEASURES
    }
