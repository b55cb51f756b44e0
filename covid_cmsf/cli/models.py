"""`covid-cmsf models` and `weights`: list encoders, convert weights files."""

import json
from dataclasses import asdict
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from covid_cmsf.cli.options import Branch, Json, Modality, NewFile

if TYPE_CHECKING:
    from covid_cmsf.models.checkpoints.load import LoadedWeights, LoadReport


models_app = typer.Typer(no_args_is_help=True, help="List the encoders, describe one.")


@models_app.command("list")
def list_models(as_json: Json = False) -> None:
    """List the encoders: parameters, GFLOPs per clip (multiply-accumulates) at the default input, feature size.

    \b
    covid-cmsf models list
    """
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
    name: Annotated[str, typer.Argument(help="A name from `covid-cmsf models list`.", show_default=False)],
    size: Annotated[
        str | None, typer.Option("--size", help="Input size TxHxW; default: the encoder's.", show_default=False)
    ] = None,
    channels: Annotated[int, typer.Option("--channels", help="Input channels: 3 for RGB, 2 for flow.")] = 3,
    as_json: Json = False,
) -> None:
    """Print the layers of an encoder: parameters, GFLOPs and output sizes.

    \b
    covid-cmsf models describe s3d --size 32x128x128 --channels 2
    """
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


# `covid-cmsf weights`: inspect, import and export weights files.

weights_app = typer.Typer(
    no_args_is_help=True, help="Inspect, import and export weights: ours, CoCLR, torchvision, MSF, CMSF, MoCo, BYOL."
)

Source = Annotated[
    Path, typer.Argument(help="A weights file: ours, CoCLR's, torchvision's, MSF's, ...", show_default=False)
]
Channels = Annotated[
    int | None,
    typer.Option(
        "--channels", help="Input channels of the result; others than the file's need --adapt.", show_default=False
    ),
]
Adapt = Annotated[
    str | None,
    typer.Option(
        "--adapt", help="Adapt the first convolution: mean, or channels such as 2,1 or zero,1,0.", show_default=False
    ),
]
Head = Annotated[
    bool, typer.Option("--head/--no-head", help="Keep the projection head; an error if the file has none.")
]
Replace = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print every unused key.")]


class ExportFormat(str, Enum):
    """Formats of `weights export`."""

    onnx = "onnx"
    torch_export = "torch-export"
    coclr = "coclr"


@weights_app.command("show")
def show_weights(
    source: Source,
    branch: Branch = None,
    head: Head = False,
    as_json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Load a weights file and print its format, encoder and metadata.

    \b
    covid-cmsf weights show weights.safetensors
    """
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
    source: Source,
    out: NewFile,
    branch: Branch = None,
    encoder: Annotated[
        str | None,
        typer.Option("--encoder", help="Name of the encoder; default: as found in the file.", show_default=False),
    ] = None,
    channels: Channels = None,
    adapt: Adapt = None,
    bn_eps: Annotated[
        float | None,
        typer.Option("--bn-eps", help="Batch-norm epsilon; default: that of the file's format.", show_default=False),
    ] = None,
    head: Head = False,
    modality: Modality = None,
    size: Annotated[
        str | None, typer.Option("--size", help="Input size TxHxW it was trained on.", show_default=False)
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option("--mean", help="Pixel mean per channel, pixels in 0 to 1: 0.5,0.5.", show_default=False),
    ] = None,
    std: Annotated[
        str | None,
        typer.Option("--std", help="Pixel standard deviation per channel: 0.25,0.25.", show_default=False),
    ] = None,
    trained: Annotated[
        str | None, typer.Option("--trained", help="Note on how it was trained.", show_default=False)
    ] = None,
    force: Replace = False,
    verbose: Verbose = False,
) -> None:
    """Convert a weights file to our format: safetensors with the encoder's metadata in the header.

    \b
    covid-cmsf weights import coclr.pth.tar --modality flow -o coclr-flow.safetensors
    """
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
    source: Source,
    out: NewFile,
    to: Annotated[ExportFormat, typer.Option("--to", help="Format to write.", show_default=False)],
    branch: Branch = None,
    channels: Channels = None,
    adapt: Adapt = None,
    head: Head = False,
    force: Replace = False,
    verbose: Verbose = False,
) -> None:
    """Export an encoder and compare the outputs of the written file with ours; a difference is an error.

    \b
    covid-cmsf weights export weights.safetensors --to onnx -o encoder.onnx
    """
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
        raise FileExistsError(f"{out} already exists; --force replaces it")
    if not out.parent.is_dir():
        raise FileNotFoundError(f"no folder {out.parent} to write {out.name} to")


def _print_report(report: "LoadReport", verbose: bool) -> None:
    for line in report.lines():
        typer.echo(line)
    for key in report.unused_keys if verbose else ():
        typer.echo(f"  unused: {key}")
