"""Gains of a plan's stages over their start and over the controls of their modality, with paired 95% intervals."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from covid_cmsf.cotrain.answers import METRICS, complete_answers
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.plan import StageConfig, merge_layers
from covid_cmsf.cotrain.stage import read_stage_result
from covid_cmsf.evaluation.answers import Runs, SeedAnswers, pair_runs
from covid_cmsf.evaluation.paired import PairedDifference, difference_over_splits, holm
from covid_cmsf.evaluation.results import LEVEL
from covid_cmsf.files import read_text

Row = dict[str, Any]
GAINS_FILE = "gains.json"  # in the folder of a plan
WIDE = 100  # characters; narrower terminals get no verdict, which the interval tells as well


class Pair(NamedTuple):
    """A stage, and another one that it is compared with."""

    stage: str
    over: str
    is_start: bool  # else a control, or what `compare` names
    modality: str
    is_control: bool = False


def gain_pairs(specs: Sequence[tuple[StageConfig, str]]) -> list[Pair]:
    """Return what is compared: each stage with its `init`, each guided one with controls of the same start.

    A control is a trained stage with an init and no guide, or CoCLR's. Then follow the stages of `compare`. `specs` are
    stages with their modality.
    """
    modality_of = {spec.name: modality for spec, modality in specs}
    init_of = {spec.name: spec.init for spec, _ in specs}
    controls = [spec for spec, _ in specs if spec.trains and spec.init and (not spec.guides or _is_coclr(spec))]
    pairs = []
    for spec, modality in specs:
        pairs += [Pair(spec.name, spec.init, True, modality)] if spec.init is not None else []
        ancestors = set()
        name = spec.init
        while name is not None:
            ancestors.add(name)
            name = init_of.get(name)
        over = [
            one.name
            for one in controls
            if spec.guides
            and not (one.guides and _is_coclr(spec))
            and one.init in ancestors
            and modality_of[one.name] == modality
        ]
        pairs += [Pair(spec.name, one, False, modality, is_control=True) for one in over]
        others = [one for one in dict.fromkeys(spec.compared) if one != spec.init and one not in over]
        pairs += [Pair(spec.name, one, False, modality) for one in others]
    return pairs


def _is_coclr(spec: StageConfig) -> bool:
    method = merge_layers(spec.overrides.get("method", {}), spec.method)
    return bool(method.get("name") == "coclr")


def compute_gains(pairs: Sequence[Pair], answers: Mapping[str, Runs]) -> list[Row]:
    """Return a row per pair that has a common split and seed; `answers` of a stage are by split and seed."""
    rows = []
    for pair in pairs:
        found = {}
        if pair.stage in answers and pair.over in answers:
            for name, metric in METRICS.items():
                paired = pair_runs(answers[pair.over], answers[pair.stage], metric)
                if paired:
                    found[name] = difference_over_splits(paired)
        if found:
            rows.append(_row(pair, found))
    for name in METRICS:
        values = [row[name] for row in rows]
        corrected = holm({str(number): value["p"] for number, value in enumerate(values)})
        for number, value in enumerate(values):
            value["corrected_p"] = corrected[str(number)]
    return rows


def _row(pair: Pair, found: Mapping[str, PairedDifference]) -> Row:
    first = next(iter(found.values()))
    values = {
        name: {
            "difference": one.difference,
            "low": one.interval[0],
            "high": one.interval[1],
            "p": one.p_value,
            "first": one.first,
            "second": one.second,
        }
        for name, one in found.items()
    }
    return {
        **pair._asdict(),
        **values,
        "verdict": describe_gain(values),
        "num_seeds": first.num_seeds,
        "num_splits": first.num_splits,
        "num_query": first.num_queries,
        "num_sources": first.num_sources,
    }


def describe_gain(values: Mapping[str, Mapping[str, float]]) -> str:
    """Say in which metrics the interval excludes zero: `better in both`, `worse in R@1`, `no difference shown`."""
    better = [METRICS[name] for name, one in values.items() if one["low"] > 0]
    worse = [METRICS[name] for name, one in values.items() if one["high"] < 0]
    texts = [
        f"{word} in {'both' if len(names) == len(METRICS) else names[0]}"
        for word, names in (("better", better), ("worse", worse))
        if names
    ]
    return ", ".join(texts) or "no difference shown"


def plan_gains(graphs: Sequence[Sequence[Stage]], keys: Sequence[tuple[str | None, int | None]]) -> list[Row]:
    """Return the gains of a plan; `keys` are split and seed of each graph."""
    answers: dict[str, dict[str, list[SeedAnswers]]] = {}
    pairs = gain_pairs([(stage.spec, stage.modality) for stage in graphs[0]])
    needed = {name for pair in pairs for name in (pair.stage, pair.over)}
    for stages, (split, seed) in zip(graphs, keys, strict=True):
        for stage in stages:
            result = read_stage_result(stage) if stage.name in needed else None
            own = complete_answers(stage, result) if result is not None else None
            if own is not None:
                answers.setdefault(stage.name, {}).setdefault(split or "", []).append(SeedAnswers(seed, own))
    return compute_gains(pairs, answers)


def read_gains(folder: Path) -> list[Row]:
    """Read the gains that a plan has written; empty if there are none."""
    path = folder / GAINS_FILE
    rows: list[Row] = json.loads(read_text(path)) if path.is_file() else []
    return rows


# Tables


def gains_markdown(rows: Sequence[Row]) -> str:
    """Return the gains as a Markdown table, with notes."""
    columns = _columns(rows)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_cells(row, columns)) + " |" for row in rows]
    return "\n".join([*lines, *(f"\n{note}" for note in gain_notes(rows))]) + "\n"


def gains_table(rows: Sequence[Row], *, width: int = 120) -> Table:
    """Return the gains for a terminal `width` characters wide."""
    columns = [name for name in _columns(rows) if width >= WIDE or name != "Verdict"]
    table = Table(title="Gains in points", box=SIMPLE_HEAD, padding=0, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name in ("R@1", "Linear"))
    for row in rows:
        table.add_row(*(Text(cell) for cell in _cells(row, columns)))  # brackets are not markup
    return table


def gain_notes(rows: Sequence[Row]) -> list[str]:
    """Return what the intervals are, and what remains after correction for their number."""
    counts = [max(row[name] for row in rows) for name in ("num_query", "num_sources", "num_seeds", "num_splits")]
    resampled = "sources" + (" and seeds" if counts[2] > 1 else "")
    over = f", over {counts[2]} seeds" if counts[2] > 1 else ""
    over += f" and {counts[3]} splits" if counts[3] > 1 else ""
    notes = [f"Paired on {counts[0]} videos of {counts[1]} sources{over}; 95% intervals resample {resampled}."]
    if len(rows) > 1:
        remaining = [
            f"{row['stage']} over {row['over']} in {metric}"
            for row in rows
            for name, metric in METRICS.items()
            if row[name]["corrected_p"] < 1 - LEVEL
        ]
        what = ", ".join(remaining) or "none"
        notes.append(f"Differences that remain after correction for {len(rows)} comparisons (Holm): {what}.")
    return notes


def _columns(rows: Sequence[Row]) -> list[str]:
    """Return the headers; the number of seeds only where it differs between rows."""
    differs = len({(row["num_seeds"], row["num_splits"]) for row in rows}) > 1
    return ["Stage", "Over", "R@1", "Linear", *(["Seeds"] if differs else []), "Verdict"]


def _cells(row: Row, columns: Sequence[str]) -> list[str]:
    cells = {
        "Stage": row["stage"],
        "Over": f"{row['over']} (start)" if row["is_start"] else row["over"],
        "R@1": _format_gain(row["r1"]),
        "Linear": _format_gain(row["linear"]),
        "Seeds": str(row["num_seeds"]),
        "Verdict": row["verdict"],
    }
    return [cells[name] for name in columns]


def _format_gain(value: Mapping[str, float]) -> str:
    return f"{value['difference']:+.1f} [{value['low']:+.1f}, {value['high']:+.1f}]"
