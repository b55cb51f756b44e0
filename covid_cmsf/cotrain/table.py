"""The result of a plan in the paper's own shape: Index, Model, Modality, Init, Constraint, Epochs, R@1, Linear."""

import csv
import io
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from covid_cmsf.atomic import write_text_atomic
from covid_cmsf.cotrain.graph import Stage
from covid_cmsf.cotrain.stage_files import read_result
from covid_cmsf.training.method_settings import CmsfSettings, CoClrSettings, MsfSettings

Row = dict[str, Any]
WIDE = 100  # columns of a terminal
COLUMNS = ("index", "stage", "model", "modality", "init", "constraint", "epochs", "r1", "linear", "seconds")
HEADS = ("Index", "Stage", "Model", "Modality", "Init", "Constraint", "Epochs", "R@1", "Linear", "Time")

SOMETIMES = {
    "transfer": "Transfer",
    "published_r1": "R@1 paper",
    "published_linear": "Linear paper",
    "published_transfer": "Transfer paper",
}


def rows_of(stages: Sequence[Stage], *, chance: bool = False) -> list[Row]:
    """One row a stage, finished or not; percentages, None where there is no result yet. `chance` is a row before."""
    index = {stage.name: stage.chosen.index or str(stage.number) for stage in stages}
    rows = [_row(stage, index) for stage in stages]
    return [_chance_row(stages, rows[0]), *rows] if chance else rows


def _chance_row(stages: Sequence[Stage], like: Row) -> Row:
    """What a random order of the gallery would give: all stages are asked about the same videos."""
    value = next((result.get("chance") for result in map(read_result, stages) if result), None)
    facts = {"index": "0", "stage": "chance", "model": "chance", "r1": value, "linear": value}
    return {**dict.fromkeys(like), **facts, "protocol": like["protocol"]}


def _row(stage: Stage, index: dict[str, str]) -> Row:
    result = read_result(stage) or {}
    chosen, settings = stage.chosen, stage.settings
    constraint = ", ".join(index[name] for name in chosen.guides)
    if settings is not None and isinstance(settings.method, CmsfSettings) and settings.method.constraint != "guide":
        constraint = "labels"
    epochs = None
    if settings is not None:
        epochs = f"+{settings.schedule.epochs}" if chosen.init else str(settings.schedule.epochs)
    return {
        "index": index[stage.name],
        "stage": stage.name,
        "model": chosen.model or model_words(stage),
        "modality": stage.modality,
        "init": index[chosen.init] if chosen.init else None,
        "constraint": constraint or None,
        "epochs": epochs,
        "r1": result.get("r1"),
        "linear": result.get("linear"),
        "seconds": result.get("seconds"),
        "r1_interval": result.get("r1_interval"),
        "published_r1": chosen.published.r1,
        "published_linear": chosen.published.linear,
        "transfer": _transfer(stage),
        "published_transfer": chosen.published.transfer,
        "effective_rank": result.get("effective_rank"),
        "protocol": stage.evaluation.protocol,
    }


def _transfer(stage: Stage) -> float | None:
    """The mean of `covid-cmsf evaluate transfer`, where that was run into the stage's folder `transfer`."""
    path = stage.folder / "transfer" / "result.json"
    return float(json.loads(path.read_text(encoding="utf-8"))["mean"]) if path.is_file() else None


def model_words(stage: Stage) -> str:
    """`CMSF 10/5`, `InfoNCE`, `random weights`: what the table calls a stage."""
    chosen, settings = stage.chosen, stage.settings
    if settings is None:
        if chosen.histogram:
            return f"{chosen.histogram} histogram"
        return f"random {chosen.random}" if chosen.random else Path(str(chosen.weights)).name
    match settings.method:
        case CmsfSettings(constraint="guide") as method:
            return f"CMSF {method.num_candidates}/{method.k}"
        case CmsfSettings() as method:
            return f"CMSF labels, k={method.k}"
        case MsfSettings() as method:
            return f"MSF k={method.k}"
        case CoClrSettings() as method:
            return f"CoCLR k={method.top_k}"
    names = {"infonce": "InfoNCE", "ubernce": "UberNCE", "supcon": "SupCon", "xent": "Xent", "byol_asym": "BYOL-asym"}
    return names.get(settings.method.name, settings.method.name)


def over_seeds(tables: Sequence[list[Row]]) -> list[Row]:
    """Mean and standard deviation over the tables of several seeds, row by row."""
    rows = []
    for same in zip(*tables, strict=True):
        row = dict(same[0])
        for name in ("r1", "linear", "transfer", "seconds", "effective_rank"):
            values = [one[name] for one in same if one[name] is not None]
            row[name] = statistics.mean(values) if values else None
            row[f"{name}_sd"] = statistics.stdev(values) if len(values) > 1 else None
        row |= {
            "num_seeds": sum(one["r1"] is not None for one in same),
            "r1_seeds": [one["r1"] for one in same],
            "r1_interval": None,
        }
        rows.append(row)
    return rows


def write_tables(folder: Path, rows: list[Row]) -> None:
    """table.md, table.csv and table.json."""
    write_text_atomic(folder / "table.json", json.dumps(rows, indent=1) + "\n")
    write_text_atomic(folder / "table.md", markdown(rows))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text_atomic(folder / "table.csv", text.getvalue())


def markdown(rows: list[Row]) -> str:
    """The table as Markdown."""
    heads = _heads(rows)
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(_cells(row, heads)) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def screen_table(rows: list[Row], title: str, *, width: int = 120) -> Table:
    """The table for a terminal of this many columns; a narrow one gets the paper's columns alone."""
    heads = _heads(rows)
    shown = [head for head in heads if width >= WIDE or head not in ("Stage", "Time")]
    table = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1 if width >= WIDE else 0), pad_edge=False)
    for head in shown:
        table.add_column(head, justify="right" if head in ("R@1", "Linear", "Time") else "left")
    for row in rows:
        cells = dict(zip(heads, _cells(row, heads), strict=True))
        table.add_row(*(cells[head] for head in shown))
    return table


def _heads(rows: list[Row]) -> list[str]:
    """Columns that no row has anything for are left out, of those that only some tables have."""
    return [*HEADS, *(head for name, head in SOMETIMES.items() if any(row.get(name) is not None for row in rows))]


def _cells(row: Row, heads: list[str]) -> list[str]:
    more = [_words(row, name) for name, head in SOMETIMES.items() if head in heads]
    return [*(_words(row, name) for name in COLUMNS), *more]


def _words(row: Row, name: str) -> str:
    value = row[name]
    if name == "seconds":
        return "" if value is None else f"{value:.0f} s"
    if name in ("r1", "linear", *SOMETIMES):
        spread = row.get(f"{name}_sd")
        return _number(value) + ("" if spread is None else f" ± {spread:.1f}")
    return "–" if value is None else str(value)


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"
