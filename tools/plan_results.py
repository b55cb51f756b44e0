"""Put the figures of a finished plan into the data of its results page.

    python tools/plan_results.py runs/ucf101-ten docs/results/data/ucf101-ten.json --claims cmsf-rgb-1,cmsf-flow-1
    python tools/results.py

The JSON file has the words: title, question, setup, reading and so on. Its tables and claims are replaced by the
figures of the plan's `table.json` and `gains.json`, so that none is typed. Its first command is that of the claims.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from covid_cmsf.cotrain.gains import read_gains
from covid_cmsf.files import write_text_atomic

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the checkout: `tools` is not installed
from tools.results import Experiment

METRICS = {"r1": "R@1", "linear": "linear"}
Row = Mapping[str, Any]


def figures_table(rows: Sequence[Row], names: Mapping[str, str]) -> dict[str, Any]:
    """Return R@1 and linear accuracy of every stage, with a figure per seed where there is one split."""
    shown = [row for row in rows if row["done"]]
    cells = [[names.get(row["stage"], row["stage"]), *(_cell(row, metric) for metric in METRICS)] for row in shown]
    splits = max((row.get("num_splits", 1) for row in shown), default=1)
    over = "seeds" if splits == 1 else f"seeds, in {splits} splits"
    return {
        "title": f"Percent, mean ± standard deviation over {over}",
        "columns": ["", *METRICS.values()],
        "rows": cells,
    }


def _cell(row: Row, metric: str) -> Any:
    mean, spread, values = row[metric], row.get(f"{metric}_sd"), row.get(f"{metric}_seeds", [])
    if mean is None or spread is None:
        return None if mean is None else round(mean, 1)
    whole = row.get("num_splits", 1) == 1 and None not in values
    per_seed = {"values": [round(value, 1) for value in values]} if whole and len(set(values)) > 1 else {}
    return {"mean": round(mean, 1), "sd": round(spread, 1), **per_seed} if spread else round(mean, 1)


def gains_table(gains: Sequence[Row], names: Mapping[str, str]) -> dict[str, Any]:
    """Return every paired difference with its interval."""
    rows = [
        [names.get(row["stage"], row["stage"]), _over(row, names), *(_interval(row[m]) for m in METRICS)]
        for row in gains
    ]
    return {
        "title": "Gains in points, with paired 95% intervals",
        "columns": ["stage", "over", *METRICS.values()],
        "rows": rows,
    }


def _over(row: Row, names: Mapping[str, str]) -> str:
    return names.get(row["over"], row["over"]) + (" (start)" if row["is_start"] else "")


def _interval(gain: Row) -> str:
    return f"{gain['difference']:+.1f} [{gain['low']:+.1f}, {gain['high']:+.1f}]"


def gain_claims(
    gains: Sequence[Row], names: Mapping[str, str], stages: Sequence[str], *, command: str, where: str
) -> list[dict[str, Any]]:
    """Return a claim per metric and gain of `stages`: shown, or its opposite, if the interval excludes zero."""
    claims = []
    for row in gains:
        if row["stage"] not in stages:
            continue
        for metric, word in METRICS.items():
            gain = row[metric]
            shown = gain["low"] > 0
            below = ", below zero" if gain["high"] < 0 else ""
            claims.append(
                {
                    "claim": f"{names.get(row['stage'], row['stage'])} is above {_over(row, names)} ({word}, {where})",
                    "effect": f"{gain['difference']:+.1f} points ({gain['first']:.1f} to {gain['second']:.1f})",
                    "spread": f"95% interval [{gain['low']:+.1f}, {gain['high']:+.1f}], "
                    + ("excludes zero" if shown or below else "includes zero")
                    + below,
                    "command": command,
                    "verdict": "shown" if shown else "opposite shown" if below else "not shown",
                }
            )
    return claims


COSTS = {"cpu_ms_a_frame": "CPU ms", "compute_cpu_ms_a_frame": "of it computing motion", "bytes_a_frame": "bytes"}


def costs_table(costs: Path, names: Mapping[str, str]) -> dict[str, Any]:
    """Return what `tools/benchmark.py extraction --json FILE` has measured, a row per second modality."""
    results = json.loads(costs.read_text(encoding="utf-8"))["results"]
    measured = [key.removesuffix("_bytes_a_frame") for key in results if key.endswith("_bytes_a_frame")]
    if not measured:
        raise ValueError(f"{costs} has no costs: `python tools/benchmark.py extraction VIDEOS --json FILE` writes them")
    return {
        "title": f"Cost of a frame ({results['clips']} clips, {results['frames']} frames): RGB, then what others add",
        "columns": ["", *COSTS.values()],
        "rows": [[names.get(one, one), *(round(results[f"{one}_{key}"], 3) for key in COSTS)] for one in measured],
    }


def fill(
    words: dict[str, Any],
    folder: Path,
    *,
    names: Mapping[str, str],
    stages: Sequence[str],
    costs: Path | None = None,
) -> dict[str, Any]:
    """Return the experiment with the figures of the plan in `folder` in the place of its tables and claims."""
    rows, gains = json.loads((folder / "table.json").read_text(encoding="utf-8")), read_gains(folder)
    tables = [figures_table(rows, names), *([gains_table(gains, names)] if gains else [])]
    known = {row["stage"] for row in rows}
    if costs is not None:
        tables.append(costs_table(costs, names))
        known |= {str(cells[0]) for cells in costs_table(costs, {})["rows"]}
    for name in [*names, *stages]:
        if name not in known:
            raise ValueError(f"{folder} has no stage {name!r}; it has {', '.join(sorted(known))}")
    where = words.pop("where", words["title"])
    claims = gain_claims(gains, names, stages, command=words["commands"][0], where=where)
    filled = {**words, "tables": tables, "claims": [{**claim, "seeds": words["seeds"]} for claim in claims]}
    Experiment.model_validate(filled)
    return filled


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of a finished plan.")],
    data: Annotated[Path, typer.Argument(help="JSON file with the words of the page; its figures are replaced.")],
    claims: Annotated[str, typer.Option(help="Stages whose gains become lines of the summary, with commas.")],
    name: Annotated[list[str] | None, typer.Option(help="STAGE=WORDS: what a stage is called on the page.")] = None,
    where: Annotated[str, typer.Option(help="Named in every claim: the clips and the split.")] = "real clips",
    costs: Annotated[
        Path | None,
        typer.Option(help="What `tools/benchmark.py extraction --json FILE` has written: a table of costs."),
    ] = None,
) -> None:
    """Replace the tables and claims of a results page by those of a plan."""
    names = dict(item.split("=", 1) for item in name or [])
    words = {**json.loads(data.read_text(encoding="utf-8")), "where": where}
    filled = fill(words, folder, names=names, stages=[stage for stage in claims.split(",") if stage], costs=costs)
    write_text_atomic(data, json.dumps(filled, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    typer.run(main)
