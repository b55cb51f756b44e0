"""Table of a plan's results with the paper's columns: Index, Model, Modality, Init, Constraint, Epochs, R@1, Linear.

N is the number of query videos; videos that could not be read are counted beside it.
"""

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from covid_cmsf.cotrain.gains import GAINS_FILE, gains_markdown
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage import ERROR_FILE, read_stage_result
from covid_cmsf.files import escape_cell, read_text, write_text_atomic

Row = dict[str, Any]
WIDE = 100  # characters; narrower terminals get fewer columns
DESCRIPTION_COLUMNS = {
    "index": "Index",
    "stage": "Stage",
    "model": "Model",
    "modality": "Modality",
    "init": "Init",
    "constraint": "Constraint",
    "epochs": "Epochs",
}
LABEL_COLUMNS = {"r1": "R@1", "linear": "Linear"}
UNLABELED_COLUMNS = {"effective_rank": "Rank", "window_r1": "Window", "source_r1": "Source", "agreement": "Agreement"}
CHANCE_COLUMNS = ("chance", "window_chance", "source_chance")
NUMBERS = (*LABEL_COLUMNS.values(), *UNLABELED_COLUMNS.values(), "N", "Time")  # aligned to the right
OPTIONAL_COLUMNS = {
    "transfer": "Transfer",
    "published_r1": "R@1 paper",
    "published_linear": "Linear paper",
    "published_transfer": "Transfer paper",
}


def table_rows(stages: Sequence[Stage], *, chance: bool = False) -> list[Row]:
    """Return one row per stage, in percent, None where there is no result yet; `chance` adds a first row."""
    index = {stage.name: stage.spec.index or str(stage.number) for stage in stages}
    rows = [_row(stage, index) for stage in stages]
    return [_chance_row(stages, rows[0]), *rows] if chance else rows


def _chance_row(stages: Sequence[Stage], template: Row) -> Row:
    """Return the scores of a random ranking; the query videos, and so chance, are the same for all stages."""
    result = next((result for result in map(read_stage_result, stages) if result), {})
    value = result.get("chance")
    values = {"index": "0", "stage": "chance", "model": "chance", "r1": value, "linear": value}
    values |= {"window_r1": result.get("window_chance"), "source_r1": result.get("source_chance")}
    return {**dict.fromkeys(template), **values, "protocol": template["protocol"], "done": value is not None}


def _row(stage: Stage, index: dict[str, str]) -> Row:
    result = read_stage_result(stage) or {}
    spec, config = stage.spec, stage.config
    constraint = ", ".join(index[name] for name in spec.guides)
    if config is not None and config.method.constraint_name:
        constraint = config.method.constraint_name
    epochs = None
    if config is not None:
        epochs = f"+{config.schedule.epochs}" if spec.init else str(config.schedule.epochs)
    return {
        "index": index[stage.name],
        "stage": stage.name,
        "model": spec.model or model_description(stage),
        "modality": stage.modality,
        "init": index[spec.init] if spec.init else None,
        "constraint": constraint or None,
        "epochs": epochs,
        **result_columns(result),
        "published_r1": spec.published.r1,
        "published_linear": spec.published.linear,
        "transfer": _transfer(stage),
        "published_transfer": spec.published.transfer,
        "protocol": stage.evaluation.protocol,
        "probe": stage.evaluation.probe,
        "error": None if result else _read_error(stage),
    }


def result_columns(result: Mapping[str, Any]) -> Row:
    """Return the columns that come from the result of a stage, in stage.json; an empty one: it is not done."""
    names = (*LABEL_COLUMNS, "seconds", "r1_interval", *UNLABELED_COLUMNS, *CHANCE_COLUMNS)
    return {
        **{name: result.get(name) for name in names},
        "num_query": result.get("num_query", result.get("num_videos")),
        "num_skipped": len(result.get("skipped", [])),
        "done": bool(result),
    }


def _read_error(stage: Stage) -> str | None:
    """Return why the stage failed when it last ran; None if it did not."""
    path = stage.folder / ERROR_FILE
    return read_text(path).strip() if path.is_file() else None


def _transfer(stage: Stage) -> float | None:
    """Return the mean accuracy of `covid-cmsf evaluate transfer`, if it was run with -o STAGE/transfer."""
    path = stage.folder / "transfer" / "result.json"
    return float(json.loads(read_text(path))["mean"]) if path.is_file() else None


def model_description(stage: Stage) -> str:
    """Return the table's name of a stage: `CMSF 10/5`, `InfoNCE`, `random s3d`."""
    spec, config = stage.spec, stage.config
    if config is None:
        if spec.histogram:
            return f"{spec.histogram} histogram"
        return f"random {spec.random}" if spec.random else Path(str(spec.weights)).name
    return config.method.display_name


def mean_over_seeds(splits: Sequence[Sequence[list[Row]]]) -> list[Row]:
    """Return the mean and standard deviation, row by row, over the tables of several seeds, by split.

    Every split counts the same. The deviation is that between seeds: the splits' variances are averaged.
    """
    rows = []
    for per_split in zip(*(zip(*tables, strict=True) for tables in splits), strict=True):
        per_seed = [one for rows_of_split in per_split for one in rows_of_split]
        row = dict(per_seed[0])
        for name in (*LABEL_COLUMNS, *UNLABELED_COLUMNS, *CHANCE_COLUMNS, "transfer", "seconds"):
            values = [[one[name] for one in own if one.get(name) is not None] for own in per_split]
            means = [statistics.mean(own) for own in values if own]
            variances = [statistics.variance(own) for own in values if len(own) > 1]
            row[name] = statistics.mean(means) if means else None
            if name not in CHANCE_COLUMNS:
                row[f"{name}_sd"] = math.sqrt(statistics.mean(variances)) if variances else None
        row |= {
            "num_seeds": max(sum(one["done"] for one in own) for own in per_split),
            "num_splits": sum(any(one["done"] for one in own) for own in per_split),
            "done": any(one["done"] for one in per_seed),
            "error": next((one["error"] for one in per_seed if one["error"]), None),
            "num_skipped": max(one["num_skipped"] or 0 for one in per_seed),
            **{f"{name}_seeds": [one[name] for one in per_seed] for name in LABEL_COLUMNS},
            "r1_interval": None,
        }
        rows.append(row)
    return rows


def write_tables(folder: Path, rows: list[Row], *, gains: Sequence[Row] = ()) -> None:
    """Write table.md, table.csv and table.json, and with `gains` gains.json; table.md then has both."""
    folder.mkdir(parents=True, exist_ok=True)
    write_text_atomic(folder / "table.json", json.dumps(rows, indent=1) + "\n")
    write_text_atomic(folder / "table.md", markdown(rows) + ("\n" + gains_markdown(gains) if gains else ""))
    if gains:
        write_text_atomic(folder / GAINS_FILE, json.dumps(list(gains), indent=1) + "\n")
    else:
        (folder / GAINS_FILE).unlink(missing_ok=True)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: escape_cell(value) for key, value in row.items()} for row in rows)
    write_text_atomic(folder / "table.csv", text.getvalue())


def markdown(rows: list[Row]) -> str:
    """Return the table as Markdown, with what chance is, and which stages failed."""
    columns = _columns(rows)
    lines = ["| " + " | ".join(columns.values()) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(_format_cell(row, name) for name in columns) + " |" for row in rows]
    notes = [f"\n{note}" for note in (chance_line(rows), *table_notes(rows)) if note]
    return "\n".join([*lines, *notes]) + "\n"


def chance_line(rows: list[Row]) -> str:
    """Return what a random ranking has; empty as long as no stage has a result."""
    measures = (
        "R@1",
        "Window (a video's first window finds its last)",
        "Source (the nearest video is of the same source)",
    )
    lines = []
    for name, measure in zip(CHANCE_COLUMNS, measures, strict=True):
        value = next((row[name] for row in rows if row.get(name) is not None), None)
        if value is not None:
            lines.append(f"{measure} of a random ranking: {value:.1f}")
    return "; ".join(lines)


def table_notes(rows: list[Row]) -> list[str]:
    """Return a line per stage that failed, and one on those that have no result."""
    stages = [row for row in rows if row["stage"] != "chance"]
    failed = [row for row in stages if row["error"] and not row["done"]]
    absent = [row["stage"] for row in stages if not row["done"] and not row["error"]]
    notes = [f"{len(failed)} of {len(stages)} stages failed:"] if failed else []
    notes += [f"  {row['stage']}: {row['error']}" for row in failed]
    if absent:
        notes.append(f"{len(absent)} of {len(stages)} stages have no result yet: {', '.join(absent)}")
    return notes


def screen_table(rows: list[Row], title: str, *, width: int = 120) -> Table:
    """Return the stages that are done, for a terminal `width` characters wide.

    A narrow one omits stage, time and N, and beside R@1 and linear accuracy what needs no labels.
    """
    rows = [row for row in rows if row["done"]]
    left_out = {"stage", "seconds"} | (set() if any(row.get("num_skipped") for row in rows) else {"num_query"})
    left_out |= set(UNLABELED_COLUMNS) if has_labels(rows) else set()
    columns = {name: header for name, header in _columns(rows).items() if width >= WIDE or name not in left_out}
    table = Table(
        title=title, caption=chance_line(rows), box=SIMPLE_HEAD, padding=(0, 1 if width >= WIDE else 0), pad_edge=False
    )
    for header in columns.values():
        table.add_column(header, justify="right" if header in NUMBERS else "left")
    for row in rows:
        table.add_row(*(_format_cell(row, name) for name in columns))
    return table


def has_labels(rows: list[Row]) -> bool:
    """Tell whether a stage was measured with labels, or none is done yet."""
    return any(row["r1"] is not None for row in rows) or not any(row["done"] for row in rows)


def _columns(rows: list[Row]) -> dict[str, str]:
    """Return the columns with their headers; measures that need labels, and optional ones, only with a value."""

    def measured(columns: Mapping[str, str]) -> dict[str, str]:
        return {name: text for name, text in columns.items() if any(row.get(name) is not None for row in rows)}

    return {
        **DESCRIPTION_COLUMNS,
        **(LABEL_COLUMNS if has_labels(rows) else {}),
        **measured(UNLABELED_COLUMNS),
        "num_query": "N",
        "seconds": "Time",
        **measured(OPTIONAL_COLUMNS),
    }


def _format_cell(row: Row, name: str) -> str:
    value = row[name]
    if name == "num_query":
        skipped = row.get("num_skipped")
        return "" if value is None else f"{value}, {skipped} skipped" if skipped else str(value)
    if name == "seconds":
        return "" if value is None else f"{value:.0f} s"
    if name in (*LABEL_COLUMNS, *UNLABELED_COLUMNS, *OPTIONAL_COLUMNS):
        spread = row.get(f"{name}_sd")
        return _format_number(value) + ("" if spread is None else f" ± {spread:.1f}")
    return "–" if value is None else str(value)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
