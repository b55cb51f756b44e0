"""Print rows as a table, as JSON or as CSV."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence

import typer


def print_rows(rows: Sequence[Mapping[str, object]], title: str, *, as_json: bool, as_csv: bool) -> None:
    """Print rows that have the same keys; a table has a title, and names in it are never cut."""
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from covid_cmsf.files import escape_cell
    from covid_cmsf.logs import printable

    if as_json:
        typer.echo(json.dumps(rows))
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, list(rows[0]) if rows else [], lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: escape_cell(value) for name, value in row.items()} for row in rows)
    elif not rows:
        typer.echo(f"none ({printable(title)})")
    else:
        table = Table(title=escape(printable(title)))
        for name in rows[0]:
            table.add_column(name, overflow="fold")
        for row in rows:
            table.add_row(*(escape(printable(str(value))) for value in row.values()))
        Console().print(table)
