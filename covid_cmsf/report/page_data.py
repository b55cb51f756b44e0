"""Data of the report's page."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from covid_cmsf.cotrain.gains import gain_notes
from covid_cmsf.pages.thumbnails import ClipCollections, ThumbnailKey, ThumbnailSet
from covid_cmsf.report.comparison import group_numbers
from covid_cmsf.report.curves import SMOOTHING, Line, charts_of, line_styles
from covid_cmsf.report.gallery import Gallery, before_and_after
from covid_cmsf.report.headline import headline
from covid_cmsf.report.plan_summary import Gains, plan_layout, plan_rows, read_plan_gains
from covid_cmsf.report.provenance import resume_command, shell_command
from covid_cmsf.report.runs import FEATURES, PlanRun

KINDS = ("rgb", "flow", "motion")  # of thumbnails, in the order of KINDS in clips.js
Data = dict[str, Any]


def choose_thumbnails(
    plans: Sequence[PlanRun], gallery: Sequence[Gallery | None], datasets: Sequence[Data]
) -> list[ThumbnailKey]:
    """Return thumbnails by priority: displayed queries, samples, neighbors by rank, other queries (RGB, for maps)."""
    pairs = [(plan.clips, one) for plan, one in zip(plans, gallery, strict=True) if one is not None and plan.clips]
    wanted = [
        ThumbnailKey(clips, one.ids[query], kind) for clips, one in pairs for query in one.shown for kind in KINDS
    ]
    for dataset in datasets:
        wanted += [
            ThumbnailKey(dataset["address"], one["id"], kind) for one in dataset.get("samples", []) for kind in KINDS
        ]
    most = max((one.num_neighbors for _, one in pairs), default=0)
    for rank in range(most):
        for clips, one in pairs:
            wanted += [ThumbnailKey(clips, video_id, kind) for video_id in _neighbors_at(one, rank) for kind in KINDS]
    wanted += [ThumbnailKey(clips, video_id, "rgb") for clips, one in pairs for video_id in one.ids[: one.num_queries]]
    return wanted


def _neighbors_at(gallery: Gallery, rank: int) -> Iterator[str]:
    """Yield the ids of the neighbors at a rank, of all displayed queries and stages."""
    for (_, ranked), rows in zip(gallery.stages, gallery.query_rows, strict=True):
        for query in gallery.shown:
            if rows[query] >= 0 and rank < ranked.neighbors.shape[1]:
                yield ranked.videos.ids[int(ranked.neighbors[rows[query], rank])]


def add_thumbnail_names_(data: Data, plans: Sequence[PlanRun], pictures: ThumbnailSet) -> None:
    """Add file names of thumbnails to galleries and samples: one per kind, empty where there is none."""
    for number, plan in enumerate(plans):
        gallery = data.get(f"gallery-{number}")
        if gallery is not None:
            gallery["pictures"] = [_names(pictures, plan.clips or "", video_id) for video_id in gallery["ids"]]
    for dataset in data["report"]["data"]:
        for sample in dataset.get("samples", []):
            sample["pictures"] = _names(pictures, dataset["address"], sample["id"])
    data["report"]["pictures"] = f"pictures/{pictures.folder}" if pictures.folder else None


def thumbnail_notes(pictures: ThumbnailSet, opened: ClipCollections) -> list[str]:
    """Return notes about missing thumbnails."""
    notes = [
        f"the clips at {opened.override or address} cannot be reached, so there are no pictures of them: {reason} "
        "(--clips gives their new path)"
        for address, reason in opened.reasons.items()
    ]
    if pictures.num_omitted:
        notes.append(f"{pictures.num_omitted} thumbnails do not fit into --megabytes")
    if pictures.failures:
        notes.append(f"{len(pictures.failures)} thumbnails could not be made, for example {pictures.failures[0]}")
    return notes


def _names(pictures: ThumbnailSet, clips: str, video_id: str) -> list[str]:
    return [pictures.made.get(ThumbnailKey(clips, video_id, kind), "") for kind in KINDS]


def plan_values(plans: Sequence[PlanRun], gallery: Sequence[Gallery | None]) -> list[dict[str, Any]]:
    """Return per plan its table, its graph, and the numbers of its data files."""
    groups = group_numbers(plans)
    values = []
    for number, (plan, group, one) in enumerate(zip(plans, groups, gallery, strict=True)):
        rows, gains = _rows(plan, one), read_plan_gains(plan)
        values.append(
            {
                "name": plan.name,
                "kind": "run" if plan.config is None else "plan",
                "group": group,
                "headline": headline(plan, rows, gains),
                "resume": _resume(plan, gains),
                "progress": [sum(stage.state == "done" for stage in plan.stages), len(plan.stages)],
                "seeds": list(dict.fromkeys(run.seed for run in plan.seeds if run.seed is not None)),
                "splits": list(dict.fromkeys(run.split for run in plan.seeds if run.split is not None)),
                "rows": rows,
                "gains": {**asdict(gains), "notes": gain_notes(gains.rows) if gains.rows else []},
                "layout": asdict(plan_layout(plan.first_seed.stages)),
                "protocol": plan.config.evaluation.protocol if plan.config is not None else None,
                "gallery": None if one is None else _gallery_info(plan, one, number),
                "missing": _missing_command(plan),
                "go_on": resume_command(plan),
                "label": label_command(plan),
            }
        )
    return values


def _resume(plan: PlanRun, gains: Gains) -> str | None:
    """Return the command that goes on with a plan; None if all of it is done and measured."""
    if plan.config is None or (all(stage.state == "done" for stage in plan.stages) and not gains.unanswered):
        return None
    return resume_command(plan)


def _gallery_info(plan: PlanRun, gallery: Gallery, number: int) -> dict[str, Any]:
    stages = [stage for stage, _ in gallery.stages]
    pairs = {stage.modality or "": before_and_after(stages, stage.modality) for stage in stages}
    return {"number": number, "run": plan.first_seed.label, "before_and_after": pairs}


def _missing_command(plan: PlanRun) -> str | None:
    """Return the command that writes missing features; None if there are features."""
    if any(stage.features for stage in plan.stages):
        return None
    return features_command(plan) if plan.config is None else resume_command(plan)


def label_command(plan: PlanRun) -> str:
    """Return the command that measures with labels: the project's own, or one that makes a project."""
    own = resume_command(plan)
    learn = own if " learn " in own else "covid-cmsf learn VIDEOS --out PROJECT"
    return f"{learn} --labels labels.csv"


def features_command(run: PlanRun) -> str:
    """Return the command, as one would type it, that extracts the features of a single run for its report."""
    config = run.stages[0].config
    split = ["--split", config.split] if config is not None and config.split != "1" else []
    out = ["-o", str(run.folder / FEATURES)]
    return shell_command(["covid-cmsf", "extract", str(run.folder), run.clips or "CLIPS", *split, *out])


def _rows(plan: PlanRun, gallery: Gallery | None) -> list[dict[str, Any]]:
    """Return the rows of the table; R@1 of a run outside of a plan is that of its features, unless it was measured."""
    rows = plan_rows(plan)
    if plan.config is None and gallery is not None:
        ranked = {stage.name: one for stage, one in gallery.stages}
        for row in rows:
            if row["r1"] is None and row["stage"] in ranked:
                row["r1"] = ranked[row["stage"]].r1
    return rows


def curve_values(lines: Sequence[Line], figures: dict[str, list[str]]) -> dict[str, Any]:
    """Return the charts and their lines; `figures` has the file names by chart."""
    charts = [{**asdict(chart), "figures": figures.get(chart.name, [])} for chart in charts_of(lines)]
    styles = line_styles(lines)
    drawn = [{**asdict(line), **styles[line.family]._asdict()} for line in lines]
    return {"charts": charts, "lines": drawn, "smoothing": SMOOTHING}


def existing_figures(folder: Path, lines: Sequence[Line]) -> dict[str, list[str]]:
    """Return the file names of existing figures by chart."""
    kinds = ("png", "svg")
    return {
        chart.name: [f"{chart.name}.{kind}" for kind in kinds if (folder / f"{chart.name}.{kind}").is_file()]
        for chart in charts_of(lines)
    }
