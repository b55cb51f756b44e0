"""`covid-cmsf doctor`."""

import json
from dataclasses import asdict
from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from covid_cmsf import __version__, exit_codes

COLORS = {"good": "green", "careful": "yellow", "bad": "red"}


def doctor(
    folder: Path = typer.Argument(Path(), help="Where you mean to write.", show_default="this folder"),
    as_json: bool = typer.Option(False, "--json", help="Print one JSON object."),
) -> None:
    """Look at this machine: packages, codecs, decoders, GPUs, writable paths; say plainly whether all is well."""
    from covid_cmsf.cli.checkup import check_up

    findings = list(check_up(folder))
    bad = [finding for finding in findings if finding.verdict == "bad"]
    if as_json:
        report = {"version": __version__, "healthy": not bad, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(report))
    else:
        table = Table("what", "", "found", title=f"covid-cmsf {__version__}")
        for finding in findings:
            color = COLORS[finding.verdict]
            table.add_row(escape(finding.what), f"[{color}]{finding.verdict}[/]", escape(finding.words))
        out = Console()
        out.print(table)
        if bad:
            out.print(f"[red]Not ready:[/] {len(bad)} things must be mended first (red lines above).")
        else:
            out.print("[green]Ready.[/] Start with: covid-cmsf demo-videos demo/videos")
    raise typer.Exit(exit_codes.FAILED if bad else exit_codes.DONE)
