"""`covid-cmsf models`: what is in the zoo."""

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from covid_cmsf.models.checkpoints.load import LoadedWeights, LoadReport


models_app = typer.Typer(no_args_is_help=True, help="The encoders: list them, describe one.")
JSON = typer.Option(False, "--json", help="Print JSON instead of a table.")


@models_app.command("list")
def list_models(as_json: bool = JSON) -> None:
    """Name, parameters, GFLOPs of one clip at its usual input (a multiply-accumulate counts once), feature size."""
    from covid_cmsf.models import encoder_entry, list_models
    from covid_cmsf.models.profile import profile_encoder

    entries = [encoder_entry(name) for name in list_models()]
    costs = [profile_encoder(entry.name, entry.default_input_size) for entry in entries]
    if as_json:
        rows = [
            {"name": entry.name, "summary": entry.summary, "input": entry.default_input_size, **asdict(cost)}
            for entry, cost in zip(entries, costs, strict=True)
        ]
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "parameters", "GFLOPs", "input", "feature", "what it is")
    for entry, cost in zip(entries, costs, strict=True):
        numbers = (
            f"{cost.num_parameters:,}",
            f"{cost.gflops:.2f}",
            _format_size(entry.default_input_size),
            str(cost.num_features),
        )
        table.add_row(entry.name, *numbers, entry.summary)
    Console().print(table)


@models_app.command("describe")
def describe_model(
    name: str = typer.Argument(help="A name from `models list`."),
    size: str | None = typer.Option(None, "--size", help="Input as TxHxW; the usual one when left out."),
    channels: int = typer.Option(3, "--channels", help="Input channels: 3 for RGB, 2 for flow."),
    as_json: bool = JSON,
) -> None:
    """The layers of one encoder with their parameters, GFLOPs and output sizes at a given input."""
    from covid_cmsf.models import encoder_entry
    from covid_cmsf.models.encoder import parse_size
    from covid_cmsf.models.profile import profile_encoder

    entry = encoder_entry(name)
    shape = parse_size(size) if size is not None else entry.default_input_size
    cost = profile_encoder(name, shape, in_channels=channels)
    if as_json:
        typer.echo(json.dumps({"name": name, "summary": entry.summary, "input": shape, **asdict(cost)}))
        return
    table = Table("layer", "parameters", "GFLOPs", "output", title=f"{name}: {entry.summary}")
    for layer in cost.layers:
        table.add_row(layer.name, f"{layer.num_parameters:,}", f"{layer.gflops:.3f}", _format_size(layer.output))
    table.add_section()
    table.add_row("all", f"{cost.num_parameters:,}", f"{cost.gflops:.3f}", f"feature of {cost.num_features}")
    Console().print(table)


def _format_size(size: tuple[int, ...]) -> str:
    return "x".join(map(str, size))


# `covid-cmsf weights`: look into weights files, bring them in, write them out for other programs.

weights_app = typer.Typer(
    no_args_is_help=True, help="Weights in and out: ours, CoCLR, torchvision, MSF, CMSF, MoCo, BYOL."
)

SOURCE_ARGUMENT = typer.Argument(help="A weights file: ours, or one of the known foreign layouts.")
OUT = typer.Option(..., "--out", "-o", help="The file to write.")
BRANCH = typer.Option(None, "--branch", help="online (default), target or guide; or the file's own name: encoder_k ...")
ENCODER = typer.Option(None, "--encoder", help="Insist on this encoder of the zoo.")
CHANNELS = typer.Option(None, "--channels", help="Input channels to have afterwards; needs --adapt when they differ.")
ADAPT = typer.Option(None, "--adapt", help="Adapt the first convolution: mean, or channels such as 2,1 or zero,1,0.")
BN_EPS = typer.Option(None, "--bn-eps", help="Batch-norm epsilon, when the file's habit is not the right one.")
HEAD = typer.Option(False, "--head/--no-head", help="Keep the projection head; a file without one is then an error.")
FORCE = typer.Option(False, "--force", help="Replace the output file if it is there.")
VERBOSE = typer.Option(False, "--verbose", "-v", help="Name every key that was left over.")


class ExportFormat(str, Enum):
    """What `weights export` can write."""

    onnx = "onnx"
    torch_export = "torch-export"
    coclr = "coclr"


@weights_app.command("show")
def show_weights(
    source: Path = SOURCE_ARGUMENT,
    branch: str | None = BRANCH,
    head: bool = HEAD,
    as_json: bool = typer.Option(False, "--json", help="Print metadata and report as JSON."),
    verbose: bool = VERBOSE,
) -> None:
    """Says what a file is and what is known about it, after loading it in full."""
    from covid_cmsf.models import load_weights

    loaded = load_weights(source, branch=branch, keep_head=head)
    if as_json:
        typer.echo(json.dumps({"metadata": loaded.metadata.model_dump(), "report": asdict(loaded.report)}))
        return
    _print_report(loaded.report, verbose)
    for field, value in loaded.metadata.model_dump().items():
        typer.echo(f"  {field}: {value}")


@weights_app.command("import")
def import_weights(
    source: Path = SOURCE_ARGUMENT,
    out: Path = OUT,
    branch: str | None = BRANCH,
    encoder: str | None = ENCODER,
    channels: int | None = CHANNELS,
    adapt: str | None = ADAPT,
    bn_eps: float | None = BN_EPS,
    head: bool = HEAD,
    modality: str | None = typer.Option(None, "--modality", help="rgb, flow, ...: foreign files do not say."),
    size: str | None = typer.Option(None, "--size", help="The input it was trained on, as TxHxW."),
    mean: str | None = typer.Option(None, "--mean", help="Pixel mean a channel (pixels 0 to 1): 0.5,0.5."),
    std: str | None = typer.Option(None, "--std", help="Pixel standard deviation a channel: 0.25,0.25."),
    trained: str | None = typer.Option(None, "--trained", help="How it was trained, in a few words."),
    force: bool = FORCE,
    verbose: bool = VERBOSE,
) -> None:
    """Brings a weights file into our exchange format: safetensors with the encoder's metadata in the header."""
    from covid_cmsf.models import load_weights, save_encoder
    from covid_cmsf.models.checkpoints.metadata import override_metadata, parse_channel_values
    from covid_cmsf.models.encoder import parse_size

    _check_output(out, force)
    loaded = load_weights(
        source, branch=branch, encoder=encoder, in_channels=channels, adapt=adapt, bn_eps=bn_eps, keep_head=head
    )
    metadata = override_metadata(
        loaded.metadata,
        modality=modality,
        trained=trained,
        input_size=None if size is None else parse_size(size),
        mean=None if mean is None else parse_channel_values(mean),
        std=None if std is None else parse_channel_values(std),
    )
    save_encoder(out, loaded.encoder, metadata, projector=loaded.projector)
    _print_report(loaded.report, verbose)
    typer.echo(f"wrote {out}")


@weights_app.command("export")
def export_weights(
    source: Path = SOURCE_ARGUMENT,
    out: Path = OUT,
    to: ExportFormat = typer.Option(..., "--to", help="What to write."),
    branch: str | None = BRANCH,
    channels: int | None = CHANNELS,
    adapt: str | None = ADAPT,
    head: bool = HEAD,
    force: bool = FORCE,
    verbose: bool = VERBOSE,
) -> None:
    """Writes an encoder for other programs and checks the file against our own network; a difference is an error."""
    from covid_cmsf.models import load_weights

    _check_output(out, force)
    if head and to is not ExportFormat.coclr:
        raise ValueError(f"--head goes with --to coclr; {to.value} holds the encoder alone")
    loaded = load_weights(source, branch=branch, in_channels=channels, adapt=adapt, keep_head=head)
    _print_report(loaded.report, verbose)
    difference = _export(to, out, loaded)
    typer.echo(f"wrote {out}; largest difference to our encoder {difference:.1e} of the largest value")


def _export(to: ExportFormat, out: Path, loaded: "LoadedWeights") -> float:
    from covid_cmsf.models.checkpoints.export import export_coclr, export_onnx, export_program

    if to is ExportFormat.coclr:
        return export_coclr(out, loaded)
    write = export_onnx if to is ExportFormat.onnx else export_program
    return write(out, loaded.encoder, loaded.metadata)


def _check_output(out: Path, force: bool) -> None:
    if out.exists() and not force:
        raise FileExistsError(f"{out} is there already; --force replaces it")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} into")


def _print_report(report: "LoadReport", verbose: bool) -> None:
    for line in report.lines():
        typer.echo(line)
    for key in report.unused_keys if verbose else ():
        typer.echo(f"  unused: {key}")
