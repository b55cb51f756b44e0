"""`covid-cmsf models`: what is in the zoo."""

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table

app = typer.Typer(no_args_is_help=True, help="The encoders: list them, describe one.")
JSON = typer.Option(False, "--json", help="Print JSON instead of a table.")


@app.command("list")
def list_models(as_json: bool = JSON) -> None:
    """Name, parameters, GFLOPs of one clip at its usual input (a multiply-accumulate counts once), feature size."""
    from covid_cmsf.models import encoder_entry, encoder_names
    from covid_cmsf.models.cost import encoder_cost

    entries = [encoder_entry(name) for name in encoder_names()]
    costs = [encoder_cost(entry.name, entry.usual_input) for entry in entries]
    if as_json:
        rows = [
            {"name": entry.name, "summary": entry.summary, "input": entry.usual_input, **asdict(cost)}
            for entry, cost in zip(entries, costs, strict=True)
        ]
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "parameters", "GFLOPs", "input", "feature", "what it is")
    for entry, cost in zip(entries, costs, strict=True):
        numbers = f"{cost.num_parameters:,}", f"{cost.gflops:.2f}", _times(entry.usual_input), str(cost.num_features)
        table.add_row(entry.name, *numbers, entry.summary)
    Console().print(table)


@app.command("describe")
def describe_model(
    name: str = typer.Argument(help="A name from `models list`."),
    size: str | None = typer.Option(None, "--size", help="Input as TxHxW; the usual one when left out."),
    channels: int = typer.Option(3, "--channels", help="Input channels: 3 for RGB, 2 for flow."),
    as_json: bool = JSON,
) -> None:
    """The layers of one encoder with their parameters, GFLOPs and output sizes at a given input."""
    from covid_cmsf.models import encoder_entry
    from covid_cmsf.models.cost import encoder_cost
    from covid_cmsf.models.encoder import parse_size

    entry = encoder_entry(name)
    shape = parse_size(size) if size is not None else entry.usual_input
    cost = encoder_cost(name, shape, in_channels=channels)
    if as_json:
        typer.echo(json.dumps({"name": name, "summary": entry.summary, "input": shape, **asdict(cost)}))
        return
    table = Table("layer", "parameters", "GFLOPs", "output", title=f"{name}: {entry.summary}")
    for layer in cost.layers:
        table.add_row(layer.name, f"{layer.num_parameters:,}", f"{layer.gflops:.3f}", _times(layer.output))
    table.add_section()
    table.add_row("all", f"{cost.num_parameters:,}", f"{cost.gflops:.3f}", f"feature of {cost.num_features}")
    Console().print(table)


def _times(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))
