"""One sentence above a report: the verdict on the last rounds with its interval, or what the networks reach."""

from collections.abc import Mapping, Sequence

from covid_cmsf.cotrain.gains import gain_pairs
from covid_cmsf.cotrain.table import Row
from covid_cmsf.report.plan_summary import Gains
from covid_cmsf.report.runs import PlanRun, StageRun

MODALITY_NAMES = {
    "rgb": "RGB",
    "frame": "images",
    "rgbdiff": "RGB differences",
    "residual_flow": "flow without the camera's pan",
    "motion": "motion vectors",
    "residual_motion": "motion vectors without the camera's pan",
    "audio": "sound",
}


def headline(plan: PlanRun, rows: Sequence[Row], gains: Gains) -> str:
    """Return the sentence of a plan or a run."""
    by_stage = {row["stage"]: row for row in rows}
    if plan.config is None:
        return _result_sentence([by_stage[stage.name] for stage in plan.stages]) or "This run is not measured yet."
    finals = _last_rounds(plan)
    verdicts = [_verdict(stage, by_stage, gains.rows) for stage in finals]
    done = [one for one in verdicts if one]
    if done:
        return "; ".join(done) + "."
    measured = [by_stage[stage.name] for stage in finals or plan.first_seed.stages if by_stage[stage.name]["done"]]
    if finals and not measured:
        count, total = sum(stage.state == "done" for stage in plan.stages), len(plan.stages)
        return f"No verdict yet: {count} of {total} stages are done, and none of the last rounds."
    return _result_sentence(measured) or "No verdict yet: nothing is measured."


def _last_rounds(plan: PlanRun) -> list[StageRun]:
    """Return the last round of each modality; CoCLR's stages have guides, too, but are controls of others."""
    stages = plan.first_seed.stages
    pairs = gain_pairs([(stage.spec, stage.modality or "") for stage in stages])
    controls = {pair.over for pair in pairs if pair.is_control}
    rounds = [stage for stage in stages if stage.kind == "round" and stage.name not in controls]
    return list({stage.modality: stage for stage in rounds}.values())


def _verdict(stage: StageRun, rows: Mapping[str, Row], gains: Sequence[Row]) -> str:
    """Compare a stage with the control that has the highest R@1, or with its start; empty without a gain.

    CMSF with true labels is no control to beat, but an upper bound.
    """
    mine = [one for one in gains if one["stage"] == stage.name and rows[one["over"]]["constraint"] != "labels"]
    mine = [one for one in mine if one["is_control"]] or [one for one in mine if one["is_start"]]
    if not mine:
        return ""
    gain = max(mine, key=lambda one: float(rows[one["over"]]["r1"] or 0))
    value, row = gain["r1"], rows[stage.name]
    low, high = value["low"], value["high"]
    verdict = "is better than" if low > 0 else "is worse than" if high < 0 else "is not shown to be better than"
    what = "its start" if gain["is_start"] else "its strongest control"
    return (
        f"{_name(row)} {verdict} {what}, {gain['over']}: R@1 {row['r1']:.1f}{_chance(row.get('chance'))}, "
        f"{value['difference']:+.1f} points (95% interval {low:+.1f} to {high:+.1f})"
    )


def _result_sentence(rows: Sequence[Row]) -> str:
    """Return what networks reach, with labels or without; empty if nothing is measured."""
    texts = [text for text in map(_result, rows) if text]
    return "; ".join(texts) + "." if texts else ""


def _result(row: Row) -> str:
    if row.get("r1") is not None:
        interval = row.get("r1_interval")
        between = f", 95% interval {interval[0]:.1f} to {interval[1]:.1f}" if interval else ""
        return f"{_name(row)} has R@1 {row['r1']:.1f}{_chance(row.get('chance'))}{between}"
    if row.get("window_r1") is not None:
        chance = _chance(row.get("window_chance"))
        return f"{_name(row)} recognizes {row['window_r1']:.1f}% of the videos by another moment of theirs{chance}"
    return ""


def _name(row: Row) -> str:
    modality = row.get("modality")
    return f"{row['model']} on {MODALITY_NAMES.get(modality, modality)}" if modality else str(row["model"])


def _chance(value: float | None) -> str:
    return "" if value is None else f" (chance {value:.1f})"
