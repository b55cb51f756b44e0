"""Table of a plan's results with the paper's columns: Index, Model, Modality, Init, Constraint, Epochs, R@1, Linear.

N is the number of query videos; videos that could not be read are counted beside it.
"""

import csv
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage import read_stage_result
from covid_cmsf.files import write_text_atomic

Row = dict[str, Any]
WIDE = 100  # characters; narrower terminals get fewer columns
COLUMNS = (
    "index",
    "stage",
    "model",
    "modality",
    "init",
    "constraint",
    "epochs",
    "r1",
    "linear",
    "num_query",
    "seconds",
)
HEADERS = ("Index", "Stage", "Model", "Modality", "Init", "Constraint", "Epochs", "R@1", "Linear", "N", "Time")

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
    value = next((result.get("chance") for result in map(read_stage_result, stages) if result), None)
    values = {"index": "0", "stage": "chance", "model": "chance", "r1": value, "linear": value}
    return {**dict.fromkeys(template), **values, "protocol": template["protocol"]}


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
        "r1": result.get("r1"),
        "linear": result.get("linear"),
        "seconds": result.get("seconds"),
        "r1_interval": result.get("r1_interval"),
        "published_r1": spec.published.r1,
        "published_linear": spec.published.linear,
        "transfer": _transfer(stage),
        "published_transfer": spec.published.transfer,
        "effective_rank": result.get("effective_rank"),
        "num_query": result.get("num_query"),
        "num_skipped": len(result.get("skipped", [])),
        "chance": result.get("chance"),
        "protocol": stage.evaluation.protocol,
    }


def _transfer(stage: Stage) -> float | None:
    """Return the mean accuracy of `covid-cmsf evaluate transfer`, if it was run with -o STAGE/transfer."""
    path = stage.folder / "transfer" / "result.json"
    return float(json.loads(path.read_text(encoding="utf-8"))["mean"]) if path.is_file() else None


def model_description(stage: Stage) -> str:
    """Return the table's name of a stage: `CMSF 10/5`, `InfoNCE`, `random s3d`."""
    spec, config = stage.spec, stage.config
    if config is None:
        if spec.histogram:
            return f"{spec.histogram} histogram"
        return f"random {spec.random}" if spec.random else Path(str(spec.weights)).name
    return config.method.display_name


def mean_over_seeds(tables: Sequence[list[Row]]) -> list[Row]:
    """Return the mean and standard deviation, row by row, over the tables of several seeds."""
    rows = []
    for per_seed in zip(*tables, strict=True):
        row = dict(per_seed[0])
        for name in ("r1", "linear", "transfer", "seconds", "effective_rank"):
            values = [one[name] for one in per_seed if one[name] is not None]
            row[name] = statistics.mean(values) if values else None
            row[f"{name}_sd"] = statistics.stdev(values) if len(values) > 1 else None
        row |= {
            "num_seeds": sum(one["r1"] is not None for one in per_seed),
            "r1_seeds": [one["r1"] for one in per_seed],
            "r1_interval": None,
        }
        rows.append(row)
    return rows


def write_tables(folder: Path, rows: list[Row]) -> None:
    """Write table.md, table.csv and table.json."""
    write_text_atomic(folder / "table.json", json.dumps(rows, indent=1) + "\n")
    write_text_atomic(folder / "table.md", markdown(rows))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomic(folder / "table.csv", text.getvalue())


def markdown(rows: list[Row]) -> str:
    """Return the table as Markdown."""
    headers = _headers(rows)
    lines = ["| " + " | ".join(headers) + " |", "|" + "---|" * len(headers)]
    lines += ["| " + " | ".join(_format_row(row, headers)) + " |" for row in rows]
    return "\n".join([*lines, "", chance_line(rows)]).rstrip("\n") + "\n"


def chance_line(rows: list[Row]) -> str:
    """Return what R@1 a random ranking has; empty as long as no stage has a result."""
    value = next((row["chance"] for row in rows if row.get("chance") is not None), None)
    return "" if value is None else f"R@1 of a random ranking: {value:.1f}"


def screen_table(rows: list[Row], title: str, *, width: int = 120) -> Table:
    """Return the table for a terminal `width` characters wide; a narrow one omits stage, time and N."""
    headers = _headers(rows)
    left_out = {"Stage", "Time"} | (set() if any(row.get("num_skipped") for row in rows) else {"N"})
    visible = [header for header in headers if width >= WIDE or header not in left_out]
    table = Table(
        title=title, caption=chance_line(rows), box=SIMPLE_HEAD, padding=(0, 1 if width >= WIDE else 0), pad_edge=False
    )
    for header in visible:
        table.add_column(header, justify="right" if header in ("R@1", "Linear", "N", "Time") else "left")
    for row in rows:
        cells = dict(zip(headers, _format_row(row, headers), strict=True))
        table.add_row(*(cells[header] for header in visible))
    return table


def _headers(rows: list[Row]) -> list[str]:
    """Return the headers; optional columns without any value are omitted."""
    return [
        *HEADERS,
        *(header for name, header in OPTIONAL_COLUMNS.items() if any(row.get(name) is not None for row in rows)),
    ]


def _format_row(row: Row, headers: list[str]) -> list[str]:
    optional = [_format_cell(row, name) for name, header in OPTIONAL_COLUMNS.items() if header in headers]
    return [*(_format_cell(row, name) for name in COLUMNS), *optional]


def _format_cell(row: Row, name: str) -> str:
    value = row[name]
    if name == "num_query":
        skipped = row.get("num_skipped")
        return "" if value is None else f"{value}, {skipped} skipped" if skipped else str(value)
    if name == "seconds":
        return "" if value is None else f"{value:.0f} s"
    if name in ("r1", "linear", *OPTIONAL_COLUMNS):
        spread = row.get(f"{name}_sd")
        return _format_number(value) + ("" if spread is None else f" ± {spread:.1f}")
    return "–" if value is None else str(value)


def _format_number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
